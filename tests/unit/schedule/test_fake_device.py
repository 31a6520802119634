"""The random tests are worth what their device notices: each of these hands it one fault."""

import pytest
from fake_device import WrongRead
from msgspec.structs import replace
from world import World, kv_spec, request

from trivium.types.step import BlockCopy, TableUpdate

PROMPT = tuple(range(100, 110))


def planned(world):
    return world.scheduler.plan(0.0)


def running_world(**options) -> World:
    world = World(**options)
    world.add(request("r", PROMPT, max_tokens=20))
    world.step()
    return world


def test_a_stale_block_is_noticed():
    world = running_world()
    stale = world.device.rows[0].tables[0][0]
    world.device.blocks[stale] = [12345] * 4
    with pytest.raises(WrongRead, match="position 0"):
        world.step()


def test_a_wrong_block_in_a_table_is_noticed():
    world = running_world()
    step = planned(world)
    wrong = TableUpdate(group=0, first=1, blocks=(world.device.rows[0].tables[0][0],))
    with pytest.raises(WrongRead, match="position 4"):
        world.device.run(replace(step, work=(replace(step.work[0], tables=(wrong,)),)))


def test_a_block_of_another_group_is_noticed():
    world = running_world(spec=kv_spec(None, None))
    step = planned(world)
    wrong = TableUpdate(group=1, first=0, blocks=(world.device.rows[0].tables[0][0],))
    with pytest.raises(WrongRead, match="group 1"):
        world.device.run(replace(step, work=(replace(step.work[0], tables=(wrong,)),)))


def test_a_position_never_computed_is_noticed():
    world = running_world()
    step = planned(world)
    world.device.rows[0].append(1)
    with pytest.raises(WrongRead, match="position 10"):
        world.device.run(replace(step, work=(replace(step.work[0], start=11),)))


def test_a_window_slid_too_early_is_noticed():
    world = running_world(spec=kv_spec(8))
    step = planned(world)
    early = TableUpdate(group=0, first=0, blocks=(-1,))
    with pytest.raises(WrongRead, match="position 3"):
        world.device.run(replace(step, work=(replace(step.work[0], tables=(early,)),)))


def test_a_copy_left_out_is_noticed():
    world = World(max_model_len=64)
    world.add(request("r", PROMPT, max_tokens=20, n=2))
    world.step()
    step = planned(world)
    assert step.copies
    with pytest.raises(WrongRead, match="position 8"):
        world.device.run(replace(step, copies=()))


def test_two_rows_writing_one_block_are_noticed():
    world = World()
    world.add(request("r", PROMPT, max_tokens=20, n=2))
    world.step()
    step = planned(world)
    own = step.copies[0]
    first, second = step.work
    shared = replace(second, tables=(replace(second.tables[0], blocks=(*second.tables[0].blocks[:2], own.src)),))
    with pytest.raises(AssertionError, match="two rows write"):
        world.device.run(replace(step, work=(first, shared)))


def test_copies_that_depend_on_each_other_are_noticed():
    world = running_world()
    step = planned(world)
    with pytest.raises(AssertionError, match="depend"):
        world.device.run(replace(step, copies=(BlockCopy(5, 6), BlockCopy(6, 7))))


def test_tokens_of_another_sequence_are_noticed():
    world = running_world()
    world.add(request("s", PROMPT, max_tokens=20))
    world.step()
    step = planned(world)
    result = world.device.run(step)
    first, second = result.sampled
    swapped = replace(result, sampled=(replace(first, tokens=second.tokens), replace(second, tokens=first.tokens)))
    assert first.tokens != second.tokens
    with pytest.raises(AssertionError):
        world.hear(world.scheduler.commit(swapped, 0.0))
