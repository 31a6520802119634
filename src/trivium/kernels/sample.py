"""The next token of each row of logits. Exact: every provider draws the same token, on every device, in any batch.

What a row asks for changes its logits first: penalties, biases, masks. Then each token gets a whole number as its
weight, 2^((logit - largest) / temperature * log2(e)) * 2^42 rounded, from float32 operations that are the same
everywhere. Whole numbers have one sum in any order, so filters and draws never depend on how they were computed:

- the order is by weight, then by id; top-k keeps the first k, top-p the first until their mass reaches its share of what
  top-k left, min-p those of at least its share of the largest, typical-p those of nearly the expected surprise;
- the drawn token is the first, by id, at which the running sum of the kept weights exceeds uniform * their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.logit_memory import row_slices

TOLERANCE = 0.0

# Instead of a token:
NOT_FINITE = -1  # the logits are not all numbers, or none is finite
ALL_BANNED = -2  # what the row asks for leaves no token

WEIGHT_BITS = 42  # of the likeliest token's weight; so 2^20 tokens have a sum below 2^63
LOG2_E = 1.44269504
MAX_SCALE = 1e30  # of logits, where the temperature is next to 0: differences overflow to minus infinity, and 0 stays 0
# 2^r = 1 + r (a + r (b + …)) for |r| <= 1/2, to 2.2e-7: least squares at Chebyshev points.
POWER = (0.6931472, 0.24022229, 0.055503275, 0.009672156, 0.001340039)


@dataclass(frozen=True)
class Draws:
    """float64 [M, 6], a row for each row of logits, columns as named below."""

    columns: Tensor
    filters: bool  # whether any row has a filter
    typical: bool  # whether any row has that one

    def of(self, rows: slice) -> Draws:
        return replace(self, columns=self.columns[rows])

    @property
    def temperature(self) -> Tensor:
        return self.columns[:, 0].float()  # 0: the likeliest token, whatever else is asked

    @property
    def top_k(self) -> Tensor:
        return self.columns[:, 1].long()  # 0: off

    @property
    def top_p(self) -> Tensor:
        return self.columns[:, 2]  # 1: off

    @property
    def min_p(self) -> Tensor:
        return self.columns[:, 3]  # 0: off

    @property
    def typical_p(self) -> Tensor:
        return self.columns[:, 4]  # 1: off

    @property
    def uniform(self) -> Tensor:
        return self.columns[:, 5]  # in [0, 1)


@dataclass(frozen=True)
class Penalties:
    """Of P of the rows, for tokens they hold already."""

    rows: Tensor  # int64 [P], ascending: which rows of logits
    amounts: Tensor  # float32 [P, 3]: repetition, over all tokens; presence and frequency, over those generated
    history: Tensor  # int64 [R, L]: tokens of sequences
    spans: Tensor  # int64 [P, 3]: row of `history`, tokens of the prompt, tokens in all

    def of(self, places: slice) -> Penalties:
        """Of some of the P rows."""
        return Penalties(self.rows[places], self.amounts[places], self.history, self.spans[places])


@dataclass(frozen=True)
class Biases:
    """What is added to logits: row m's are starts[m] … starts[m + 1] - 1. Minus infinity bans."""

    starts: Tensor  # int64 [M + 1]
    tokens: Tensor  # int64 [B]
    values: Tensor  # float32 [B]


@dataclass(frozen=True)
class Masks:
    """Of K of the rows: bit t % 32 of word t // 32 says whether token t may come next."""

    rows: Tensor  # int64 [K], ascending: which rows of logits
    bits: Tensor  # int32 [K, ceil(V / 32)]

    def of(self, places: slice) -> Masks:
        """Of some of the K rows."""
        return Masks(self.rows[places], self.bits[places])


@dataclass(frozen=True)
class SampleBatch:
    """How the tokens of M rows are chosen. None: no row asks for that."""

    draws: Draws | None = None  # None: every row takes its likeliest token
    penalties: Penalties | None = None
    biases: Biases | None = None
    masks: Masks | None = None

    @property
    def changes_logits(self) -> bool:
        return self.penalties is not None or self.biases is not None or self.masks is not None

    def of_row(self, m: int) -> SampleBatch:
        """Of row m alone, where the tensors are on the host."""
        penalties, biases, masks = self.penalties, self.biases, self.masks
        if penalties is not None:
            penalties = penalties.of(_place_of(m, penalties.rows))
            penalties = replace(penalties, rows=torch.zeros_like(penalties.rows))
        if biases is not None:
            first, last = biases.starts[m : m + 2].tolist()
            biases = Biases(torch.tensor([0, last - first]), biases.tokens[first:last], biases.values[first:last])
        if masks is not None:
            masks = masks.of(_place_of(m, masks.rows))
            masks = replace(masks, rows=torch.zeros_like(masks.rows))
        return SampleBatch(self.draws and self.draws.of(slice(m, m + 1)), penalties, biases, masks)


def _place_of(m: int, rows: Tensor) -> slice:
    """Of the number m among ascending ones, or of nothing."""
    first, last = torch.searchsorted(rows, torch.tensor([m, m + 1])).tolist()
    return slice(first, last)


def reference(logits: Tensor, batch: SampleBatch) -> Tensor:
    """logits [M, V] -> int64 [M]: tokens, or one of the negative numbers above. All is computed in float32."""
    logits = logits.float()
    largest = logits.amax(dim=-1)
    is_sound = torch.isfinite(largest)  # a NaN anywhere makes the largest NaN, an overflow infinite
    if batch.changes_logits:
        logits = changed_logits(logits, batch)
        largest = logits.amax(dim=-1)
    tokens = logits.argmax(dim=-1)
    if batch.draws is not None:
        tokens = torch.where(batch.draws.temperature > 0, _drawn(logits, batch.draws), tokens)
    tokens = torch.where(torch.isfinite(largest), tokens, ALL_BANNED)
    return torch.where(is_sound, tokens, NOT_FINITE)


def changed_logits(logits: Tensor, batch: SampleBatch) -> Tensor:
    """A copy. No row is asked for before all of it is: what is known on a device only is not waited for here."""
    logits = logits.clone()
    if batch.penalties is not None:
        for places in row_slices(len(batch.penalties.rows), logits.shape[1], logits.device.type):
            _penalize(logits, batch.penalties.of(places))
    if batch.biases is not None:
        biases = batch.biases
        rows = torch.arange(len(logits), device=logits.device).repeat_interleave(
            biases.starts.diff(), output_size=len(biases.tokens)
        )
        logits.view(-1).index_add_(0, rows * logits.shape[1] + biases.tokens, biases.values)
    if batch.masks is not None:
        for places in row_slices(len(batch.masks.rows), logits.shape[1], logits.device.type):
            _mask(logits, batch.masks.of(places))
    return logits


def kept_weights(logits: Tensor, draws: Draws) -> Tensor:
    """int64 [M, V]: the weight with which each token is drawn; 0 for those that the filters drop."""
    weights = _weights(logits, draws.temperature)
    if not draws.filters:
        return weights
    num_tokens = weights.shape[1]
    top_k = torch.where(draws.top_k > 0, draws.top_k.clamp(max=num_tokens), num_tokens)
    weights = _first(weights, torch.ones_like(weights), top_k)
    wanted = (draws.top_p * weights.sum(dim=-1)).ceil().long().clamp(min=1)
    weights = torch.where((draws.top_p < 1).unsqueeze(1), _first(weights, weights, wanted), weights)
    least = (draws.min_p * 2**WEIGHT_BITS).ceil().long()
    weights = torch.where(weights >= least.unsqueeze(1), weights, 0)
    if draws.typical:  # row by row: a sum of floats over several rows at once might be taken in another order
        rows = [_typical(row, mass) for row, mass in zip(weights, draws.typical_p, strict=True)]
        weights = torch.where((draws.typical_p < 1).unsqueeze(1), torch.stack(rows), weights)
    return weights


def _drawn(logits: Tensor, draws: Draws) -> Tensor:
    """int64 [M], some rows after the others."""
    slices = row_slices(len(logits), logits.shape[1], logits.device.type)
    return torch.cat([_draw(kept_weights(logits[rows], draws.of(rows)), draws.uniform[rows]) for rows in slices])


def _mask(logits: Tensor, masks: Masks) -> None:
    bit = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (masks.bits.unsqueeze(-1) >> bit & 1).bool().flatten(1)[:, : logits.shape[1]]
    logits[masks.rows] = logits[masks.rows].masked_fill(~allowed, float("-inf"))


def _penalize(logits: Tensor, penalties: Penalties) -> None:
    row, num_prompt, num_tokens = penalties.spans.unsqueeze(-1).unbind(dim=1)
    repetition, presence, frequency = penalties.amounts.unsqueeze(-1).unbind(dim=1)
    place = torch.arange(penalties.history.shape[1], device=logits.device)
    tokens = torch.where(place < num_tokens, penalties.history[row.squeeze(1)], 0)
    values = logits[penalties.rows]
    counts = torch.zeros(2, *values.shape, dtype=torch.int64, device=logits.device)
    counts[0].scatter_add_(1, tokens, (place < num_tokens).long())
    counts[1].scatter_add_(1, tokens, ((place >= num_prompt) & (place < num_tokens)).long())
    values = torch.where(counts[0] > 0, torch.where(values > 0, values / repetition, values * repetition), values)
    amounts = frequency * counts[1].float() + presence
    logits[penalties.rows] = torch.where(counts[1] > 0, values - amounts, values)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    scale = (temperature.reciprocal() * LOG2_E).clamp(max=MAX_SCALE).unsqueeze(1)
    exponent = (logits - logits.amax(dim=-1, keepdim=True)) * scale
    is_kept = exponent >= -WEIGHT_BITS
    exponent = torch.where(is_kept, exponent, 0.0)
    whole = exponent.round()
    rest = exponent - whole
    power = torch.full_like(rest, POWER[-1])
    for coefficient in (*POWER[-2::-1], 1.0):
        power.mul_(rest).add_(coefficient)
    # 2^(whole + WEIGHT_BITS) by its bits, and the product with it, are exact.
    shift = (whole.to(torch.int32) + (WEIGHT_BITS + 127) << 23).view(torch.float32)
    return torch.where(is_kept, (power * shift).round().long(), 0)


def _first(weights: Tensor, amounts: Tensor, wanted: Tensor) -> Tensor:
    """The weights of the first tokens in order until their `amounts` reach `wanted` [M], and 0 for the others."""
    wanted = wanted.unsqueeze(1)
    # Worked in place: 43 passes over a vocabulary would otherwise make and free as many copies of it.
    counted, is_counted = torch.empty_like(amounts), torch.empty_like(weights, dtype=torch.bool)
    nothing = amounts.new_zeros(())
    least = torch.zeros_like(wanted)  # the largest weight such that those of at least it reach `wanted`
    for bit in range(WEIGHT_BITS, -1, -1):
        higher = least | 1 << bit
        torch.ge(weights, higher, out=is_counted)
        reached = torch.where(is_counted, amounts, nothing, out=counted).sum(dim=-1, keepdim=True)
        least = torch.where(reached >= wanted, higher, least)
    is_higher, is_equal = torch.gt(weights, least, out=is_counted), weights == least
    before = torch.where(is_higher, amounts, nothing, out=counted).sum(dim=-1, keepdim=True)
    equal_before = torch.where(is_equal, amounts, nothing, out=counted).cumsum_(dim=-1).sub_(amounts)
    return torch.where(is_higher | is_equal & (before + equal_before < wanted), weights, 0)


def _typical(weights: Tensor, mass: Tensor) -> Tensor:
    """Of one row: tokens whose surprise is nearest to the expected surprise, until their share reaches `mass`."""
    normal = weights.double() / weights.sum().double()
    surprise = normal.log().neg_()
    distance = surprise.sub_(torch.nansum(normal * surprise)).abs_()
    ordered, order = distance.sort(stable=True)
    count = (normal[order].cumsum(0) < mass).sum().clamp(max=len(ordered) - 1)
    return torch.where(distance <= ordered[count], weights, 0)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    sums = weights.cumsum(dim=-1)
    target = (uniform * sums[:, -1].double()).long().minimum(sums[:, -1] - 1)
    return (sums <= target.unsqueeze(1)).sum(dim=-1).clamp(max=weights.shape[1] - 1)


def cases(random: Generator) -> Iterator[Case]:
    for rows, vocab in [(1, 1), (1, 5), (3, 515), (9, 3000), (2, 49152)]:
        for spread in (0.0, 0.1, 3.0, 20.0):
            logits = normal(random, rows, vocab) * spread
            yield Case(f"{rows} x {vocab}, spread {spread}, greedy", (logits, SampleBatch()))
            yield Case(f"{rows} x {vocab}, spread {spread}", (logits, SampleBatch(_draws(random, rows, filters=False))))
            drawn = SampleBatch(_draws(random, rows, filters=True))
            yield Case(f"{rows} x {vocab}, spread {spread}, filtered", (logits, drawn))
            yield Case(f"{rows} x {vocab}, spread {spread}, ties", (logits.round(), drawn))
            changed = _changes(random, rows, vocab)
            yield Case(f"{rows} x {vocab}, spread {spread}, changed", (logits, changed))
            yield Case(
                f"{rows} x {vocab}, spread {spread}, changed and drawn", (logits, replace(changed, draws=drawn.draws))
            )
    logits = normal(random, 5, 70)
    logits[0, 69], logits[1, 3], logits[2], logits[3, :69] = torch.nan, torch.inf, -torch.inf, -torch.inf
    yield Case("rows that are not numbers", (logits, SampleBatch()))
    yield Case("rows that are not numbers, drawn", (logits, SampleBatch(_draws(random, 5, filters=True))))
    nothing = Masks(torch.tensor([0, 2]), torch.zeros(2, 3, dtype=torch.int32))
    yield Case("rows that may say nothing", (normal(random, 3, 70), SampleBatch(masks=nothing)))
    yield Case("no rows", (normal(random, 0, 70), SampleBatch()))


def _draws(random: Generator, rows: int, filters: bool) -> Draws:
    def one_of(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), (rows,), generator=random)]

    columns = [one_of(0.0, 1e-40, 0.3, 1.0, 1.7, 50.0)]
    columns += (
        [one_of(0, 1, 2, 40, 1e6), one_of(1e-9, 0.1, 0.95, 0.999, 1), one_of(0, 0.05, 1)]
        if filters
        else [
            one_of(0),
            one_of(1),
            one_of(0),
        ]
    )
    uniform = torch.rand(rows, generator=random, dtype=torch.float64)
    columns += [one_of(1), torch.where(one_of(0, 1, 1) > 0, uniform, one_of(0, 1 - 2**-53))]
    return Draws(torch.stack(columns, dim=1), filters=filters, typical=False)


def _changes(random: Generator, rows: int, vocab: int) -> SampleBatch:
    def some_rows() -> Tensor:
        return (torch.rand(rows, generator=random) < 0.7).nonzero().squeeze(1)

    chosen = some_rows()
    history = torch.randint(vocab, (rows + 2, 50), generator=random)
    lengths = torch.randint(51, (len(chosen), 2), generator=random).sort(dim=1).values
    where = torch.randperm(rows + 2, generator=random)[: len(chosen)].unsqueeze(1)
    amounts = torch.rand(len(chosen), 3, generator=random) + torch.tensor([0.5, -0.5, -0.5])
    counts = torch.randint(4, (rows,), generator=random).clamp(max=vocab)
    num_biases = int(counts.sum())
    values = normal(random, num_biases) * 3
    values[::3] = float("-inf")
    masked = some_rows()
    words = -(-vocab // 32)
    return SampleBatch(
        penalties=Penalties(chosen, amounts, history, torch.cat([where, lengths], dim=1)),
        biases=Biases(
            torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
            _distinct_in_each_row(random, counts, vocab),
            values,
        ),
        masks=Masks(masked, torch.randint(-(2**31), 2**31, (len(masked), words), generator=random).to(torch.int32)),
    )


def _distinct_in_each_row(random: Generator, counts: Tensor, vocab: int) -> Tensor:
    """As a request has one bias for a token; a second would be added in an order of the device's own."""
    return torch.cat(
        [torch.zeros(0, dtype=torch.int64)]
        + [torch.randperm(vocab, generator=random)[:count] for count in counts.tolist()]
    )
