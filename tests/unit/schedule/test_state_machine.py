"""The same promises as the random worlds', told to hypothesis, which shrinks a broken one to its shortest story."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from world import World, kv_spec, request

from trivium.types.errors import NeverFitsError

indices = st.one_of(st.none(), st.integers(0, 3))


class SchedulerStory(RuleBasedStateMachine):
    @initialize(
        windows=st.sampled_from([(None,), (5,), (None, 6), (3, None, 9)]),
        block_size=st.integers(1, 4),
        blocks_per_group=st.integers(3, 20),
        max_rows=st.integers(1, 4),
        spare_tokens=st.sampled_from([0, 3, 30]),
        max_chunk_tokens=st.sampled_from([None, 1, 5]),
        prefix_caching=st.booleans(),
        steps_ahead=st.integers(0, 1),
    )
    def begin(
        self,
        windows,
        block_size,
        blocks_per_group,
        max_rows,
        spare_tokens,
        max_chunk_tokens,
        prefix_caching,
        steps_ahead,
    ):
        self.world = World(
            kv_spec(*windows, block_size=block_size),
            blocks_per_group * len(windows),
            max_rows=max_rows,
            max_batch_tokens=max_rows + spare_tokens,
            max_chunk_tokens=max_chunk_tokens,
            prefix_caching=prefix_caching,
            steps_ahead=steps_ahead,
        )
        self.names: list[str] = []

    @rule(
        length=st.integers(1, 14),
        last=st.integers(0, 1),
        max_tokens=st.integers(1, 10),
        n=st.integers(1, 3),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "other"]),
        prompt_logprobs=st.sampled_from([None, 0]),
    )
    def add(self, length, last, max_tokens, n, priority, salt, prompt_logprobs):
        name = f"r{len(self.names)}"
        prompt = (*range(length - 1), last)  # prompts share all but their last token, or all
        try:
            self.world.add(
                request(
                    name,
                    prompt,
                    max_tokens,
                    arrival=self.world.now,
                    n=n,
                    priority=priority,
                    salt=salt,
                    stop=(1,),
                    prompt_logprobs=prompt_logprobs,
                )
            )
        except NeverFitsError:
            return
        self.names.append(name)

    def name(self, which: int) -> str:
        return self.names[which % len(self.names)] if self.names else "nobody"

    @rule(which=st.integers(0, 20), index=indices)
    def cancel(self, which, index):
        self.world.cancel(self.name(which), index)

    @rule(which=st.integers(0, 20))
    def preempt(self, which):
        self.world.scheduler.preempt(self.name(which))

    @rule(num_tokens=st.integers(1, 3))
    def step(self, num_tokens):
        """Several tokens are drawn only where no later step counts on one."""
        self.world.step(num_tokens=lambda work: 1 if self.world.steps_ahead else num_tokens)

    @rule(which=st.integers(0, 20), index=indices)
    def step_with_a_cancel_in_flight(self, which, index):
        self.world.step(meanwhile=lambda: self.world.cancel(self.name(which), index))

    @rule(which=st.integers(0, 20))
    def step_with_a_preemption_in_flight(self, which):
        self.world.step(meanwhile=lambda: self.world.scheduler.preempt(self.name(which)))

    @rule(row=st.integers(0, 3))
    def step_with_a_failure(self, row):
        self.world.step(fails=lambda work: work.row == row)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.drain()
            self.world.assert_idle()


TestSchedulerStory = SchedulerStory.TestCase
TestSchedulerStory.settings = settings(max_examples=150, stateful_step_count=40)
