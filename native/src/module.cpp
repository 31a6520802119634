// trivium._native: what Python sees. Tensors come in through DLPack, results are written into tensors that the caller
// made, and the interpreter is let go while the kernels run.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "cpu.h"
#include "ops.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;
using trivium::Activation;
using trivium::AttentionTensors;
using trivium::ElementFunction;
using trivium::Held;
using trivium::Ops;
using trivium::Program;
using trivium::SampleTensors;
using trivium::StepTensors;
using trivium::Tensor;
using trivium::WeightTensor;

namespace {

using TypeName = std::optional<std::string_view>;

Tensor view(nb::handle object, const char* name) { return trivium::view(object.ptr(), name); }

Activation activation_of(std::string_view name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    throw std::invalid_argument("no kernel for the activation " + std::string(name));
}

Held held_of(std::string_view name) {
    if (name == "nothing") return Held::nothing;
    if (name == "summand") return Held::summand;
    return trivium::gate_of(activation_of(name));
}

ElementFunction function_of(std::string_view name) {
    if (name == "gelu") return ElementFunction::gelu;
    if (name == "gelu_tanh") return ElementFunction::gelu_tanh;
    if (name == "relu") return ElementFunction::relu;
    if (name == "silu") return ElementFunction::silu;
    throw std::invalid_argument("no kernel for the function " + std::string(name));
}

const std::vector<trivium::Probe>& probes() {
    static const std::vector<trivium::Probe> once = trivium::probe_instruction_sets();
    return once;
}

const trivium::Kernels& kernels_named(std::string_view name) {
    for (const trivium::Probe& probe : probes()) {
        if (name != probe.kernels->name) continue;
        if (!probe.usable) throw std::invalid_argument(std::string(name) + " cannot be used: " + probe.reason);
        return *probe.kernels;
    }
    throw std::invalid_argument("no such instruction set: " + std::string(name));
}

std::optional<Tensor> optional_view(nb::handle object, const char* name) {
    if (object.is_none()) return std::nullopt;
    return view(object, name);
}

// The type's name where it outlives the call.
TypeName kept(TypeName type) {
    return type ? TypeName(trivium::layout(trivium::packed_type_named(*type)).name) : std::nullopt;
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("interface_version") = 9;  // what is here, as kernels/native.py knows it: a change of either changes the number

    m.def(
        "packed_tile_bytes",
        [](std::string_view type, int64_t columns) {
            return trivium::packed_tile_bytes(trivium::packed_type_named(type), columns);
        },
        "type"_a, "columns"_a, "Bytes of 16 packed rows.");

    m.def("can_be_byte_rows", &trivium::can_be_byte_rows, "columns"_a, "Whether a weight of so many columns can.");

    m.def(
        "instruction_sets",
        [] {
            std::vector<std::tuple<std::string, bool, std::string>> all;
            for (const trivium::Probe& probe : probes()) all.emplace_back(probe.kernels->name, probe.usable, probe.reason);
            return all;
        },
        "(name, usable, reason) of each instruction set that was built, best last.");

    m.def("tells_shape_of_tiles", &trivium::tells_shape_of_tiles,
          "Whether who asks the processor for the shape of its tiles is told one.");

    nb::class_<Ops>(m, "Kernels")
        .def(
            "__init__",
            [](Ops* self, std::string_view instruction_set, int num_threads) {
                if (num_threads < 1) throw std::invalid_argument("num_threads must be at least 1");
                new (self) Ops(kernels_named(instruction_set), num_threads);
            },
            "instruction_set"_a, "num_threads"_a)
        .def_prop_ro("instruction_set", [](const Ops& self) { return self.kernels().name; })
        .def_prop_ro("num_threads", &Ops::num_threads)
        .def(
            "expands",
            [](const Ops& self, std::string_view type) { return self.kernels().expands(trivium::packed_type_named(type)); },
            "type"_a, "Whether packed weights of the type are made ready anew for the tokens that are taken together.")
        .def(
            "pack",
            [](Ops& self, nb::handle weight, TypeName type, nb::handle out, std::string_view out_type) {
                const WeightTensor weight_view = {view(weight, "weight"), type}, out_view = {view(out, "out"), out_type};
                nb::gil_scoped_release released;
                return self.pack(weight_view, out_view);
            },
            "weight"_a, "type"_a.none(), "out"_a, "out_type"_a)
        .def(
            "checksum",
            [](Ops& self, nb::handle bytes) {
                const Tensor bytes_view = view(bytes, "bytes");
                nb::gil_scoped_release released;
                return self.checksum(bytes_view);
            },
            "bytes"_a)
        .def(
            "packed_linear",
            [](Ops& self, nb::handle x, nb::handle packed, TypeName type, nb::handle bias, nb::handle out) {
                std::optional<Tensor> bias_view;
                if (!bias.is_none()) bias_view = view(bias, "bias");
                const Tensor x_view = view(x, "x"), out_view = view(out, "out");
                const WeightTensor packed_view = {view(packed, "packed"), type};
                nb::gil_scoped_release released;
                self.packed_linears(x_view, {}, {{packed_view, bias_view, out_view}});
            },
            "x"_a, "packed"_a, "type"_a, "bias"_a.none(), "out"_a)
        .def(
            "embed",
            [](Ops& self, nb::handle ids, nb::handle weight, TypeName type, nb::handle out) {
                const Tensor ids_view = view(ids, "ids"), out_view = view(out, "out");
                const WeightTensor weight_view = {view(weight, "weight"), type};
                nb::gil_scoped_release released;
                self.embed(ids_view, weight_view, out_view);
            },
            "ids"_a, "weight"_a, "type"_a.none(), "out"_a)
        .def(
            "rms_norm",
            [](Ops& self, nb::handle x, nb::handle weight, float eps, nb::handle out) {
                const Tensor x_view = view(x, "x"), weight_view = view(weight, "weight"), out_view = view(out, "out");
                nb::gil_scoped_release released;
                self.rms_norm(x_view, weight_view, eps, out_view);
            },
            "x"_a, "weight"_a, "eps"_a, "out"_a)
        .def(
            "rotary",
            [](Ops& self, nb::handle q, nb::handle k, nb::handle cos, nb::handle sin, nb::handle q_out,
               nb::handle k_out) {
                const Tensor q_view = view(q, "q"), k_view = view(k, "k"), cos_view = view(cos, "cos"),
                             sin_view = view(sin, "sin"), q_out_view = view(q_out, "q_out"),
                             k_out_view = view(k_out, "k_out");
                nb::gil_scoped_release released;
                self.rotary(q_view, k_view, cos_view, sin_view, q_out_view, k_out_view);
            },
            "q"_a, "k"_a, "cos"_a, "sin"_a, "q_out"_a, "k_out"_a)
        .def(
            "gated",
            [](Ops& self, nb::handle gate, nb::handle up, std::string_view activation, nb::handle out) {
                const Tensor gate_view = view(gate, "gate"), up_view = view(up, "up"), out_view = view(out, "out");
                const Activation kind = activation_of(activation);
                nb::gil_scoped_release released;
                self.gated(gate_view, up_view, kind, out_view);
            },
            "gate"_a, "up"_a, "activation"_a, "out"_a)
        .def(
            "layer_norm",
            [](Ops& self, nb::handle x, nb::handle weight, nb::handle bias, float eps, nb::handle out) {
                const Tensor x_view = view(x, "x"), weight_view = view(weight, "weight"), bias_view = view(bias, "bias"),
                             out_view = view(out, "out");
                nb::gil_scoped_release released;
                self.layer_norm(x_view, weight_view, bias_view, eps, out_view);
            },
            "x"_a, "weight"_a, "bias"_a, "eps"_a, "out"_a)
        .def(
            "activate",
            [](Ops& self, nb::handle x, std::string_view function, nb::handle out) {
                const Tensor x_view = view(x, "x"), out_view = view(out, "out");
                const ElementFunction kind = function_of(function);
                nb::gil_scoped_release released;
                self.activate(x_view, kind, out_view);
            },
            "x"_a, "function"_a, "out"_a)
        .def(
            "text_attention",
            [](Ops& self, nb::handle q, nb::handle k, nb::handle v, nb::handle starts, float scale,
               std::optional<int64_t> reach, nb::handle out) {
                const Tensor q_view = view(q, "q"), k_view = view(k, "k"), v_view = view(v, "v"),
                             starts_view = view(starts, "starts"), out_view = view(out, "out");
                if (reach && *reach < 0) throw std::invalid_argument("reach must be at least 0");
                nb::gil_scoped_release released;
                self.text_attention(q_view, k_view, v_view, starts_view, scale, reach.value_or(-1), out_view);
            },
            "q"_a, "k"_a, "v"_a, "starts"_a, "scale"_a, "reach"_a.none(), "out"_a)
        .def(
            "write_kv",
            [](Ops& self, nb::handle k, nb::handle v, nb::handle key_cache, nb::handle value_cache, nb::handle slots) {
                const Tensor k_view = view(k, "k"), v_view = view(v, "v"), key_view = view(key_cache, "key_cache"),
                             value_view = view(value_cache, "value_cache"), slots_view = view(slots, "slots");
                nb::gil_scoped_release released;
                self.write_kv(k_view, v_view, key_view, value_view, slots_view);
            },
            "k"_a, "v"_a, "key_cache"_a, "value_cache"_a, "slots"_a)
        .def(
            "paged_attention",
            [](Ops& self, nb::handle q, nb::handle key_cache, nb::handle value_cache, nb::handle query_starts,
               nb::handle context_lens, nb::handle block_table, float scale, std::optional<int64_t> window,
               std::optional<float> softcap, nb::handle out) {
                const Tensor q_view = view(q, "q"), key_view = view(key_cache, "key_cache"),
                             value_view = view(value_cache, "value_cache"), out_view = view(out, "out");
                const AttentionTensors batch = {view(query_starts, "query_starts"), view(context_lens, "context_lens"),
                                                view(block_table, "block_table")};
                if (window && *window < 1) throw std::invalid_argument("window must be at least 1");
                if (softcap && !(*softcap > 0)) throw std::invalid_argument("softcap must be above 0");
                nb::gil_scoped_release released;
                self.paged_attention(q_view, key_view, value_view, batch, scale, window.value_or(0),
                                     softcap.value_or(0.0f), out_view);
            },
            "q"_a, "key_cache"_a, "value_cache"_a, "query_starts"_a, "context_lens"_a, "block_table"_a, "scale"_a,
            "window"_a.none(), "softcap"_a.none(), "out"_a)
        .def(
            "route",
            [](Ops& self, nb::handle logits, bool normalized, nb::handle ids, nb::handle shares) {
                const Tensor logits_view = view(logits, "logits"), ids_view = view(ids, "ids"),
                             shares_view = view(shares, "shares");
                nb::gil_scoped_release released;
                self.route(logits_view, normalized, ids_view, shares_view);
            },
            "logits"_a, "normalized"_a, "ids"_a, "shares"_a)
        .def(
            "experts",
            [](Ops& self, nb::handle x, nb::handle ids, nb::handle shares, nb::handle gate, TypeName gate_type,
               nb::handle up, TypeName up_type, nb::handle down, TypeName down_type, int64_t wide,
               std::string_view activation, nb::handle out) {
                const Tensor x_view = view(x, "x"), ids_view = view(ids, "ids"), shares_view = view(shares, "shares"),
                             out_view = view(out, "out");
                const trivium::ExpertTensors weights = {
                    {view(gate, "gate"), gate_type}, {view(up, "up"), up_type}, {view(down, "down"), down_type}, wide};
                const Activation kind = activation_of(activation);
                nb::gil_scoped_release released;
                self.experts(x_view, ids_view, shares_view, weights, kind, out_view);
            },
            "x"_a, "ids"_a, "shares"_a, "gate"_a, "gate_type"_a, "up"_a, "up_type"_a, "down"_a, "down_type"_a, "wide"_a,
            "activation"_a, "out"_a)
        .def(
            "sample",
            [](Ops& self, nb::handle logits, nb::handle draws, nb::handle penalties, nb::handle biases,
               nb::handle masks, nb::handle out) {
                const Tensor logits_view = view(logits, "logits"), out_view = view(out, "out");
                SampleTensors batch;
                batch.draws = optional_view(draws, "draws");
                if (!penalties.is_none())
                    batch.penalties = {view(penalties[0], "rows"), view(penalties[1], "amounts"),
                                       view(penalties[2], "history"), view(penalties[3], "spans")};
                if (!biases.is_none())
                    batch.biases = {view(biases[0], "starts"), view(biases[1], "tokens"), view(biases[2], "values")};
                if (!masks.is_none()) batch.masks = {view(masks[0], "rows"), view(masks[1], "bits")};
                nb::gil_scoped_release released;
                self.sample(logits_view, batch, out_view);
            },
            "logits"_a, "draws"_a.none(), "penalties"_a.none(), "biases"_a.none(), "masks"_a.none(), "out"_a,
            "penalties: (rows, amounts, history, spans); biases: (starts, tokens, values); masks: (rows, bits).")
        .def(
            "logprobs",
            [](Ops& self, nb::handle logits, nb::handle tokens, nb::handle scores, nb::handle places) {
                const Tensor logits_view = view(logits, "logits"), tokens_view = view(tokens, "tokens"),
                             scores_view = view(scores, "scores"), places_view = view(places, "places");
                nb::gil_scoped_release released;
                self.logprobs(logits_view, tokens_view, scores_view, places_view);
            },
            "logits"_a, "tokens"_a, "scores"_a, "places"_a);

    nb::class_<Program>(m, "Program", "Ops recorded once, replayed for steps of any number of tokens.")
        .def(nb::init<Ops&, std::vector<int64_t>>(), "kernels"_a, "buffer_widths"_a, nb::keep_alive<1, 2>())
        .def_prop_ro("num_ops", &Program::num_ops)
        .def(
            "embed",
            [](Program& self, nb::handle weight, TypeName type, int64_t out) {
                self.embed({view(weight, "weight"), kept(type)}, out);
            },
            "weight"_a, "type"_a.none(), "out"_a)
        .def("scale", &Program::scale, "x"_a, "factor"_a, "out"_a)
        .def(
            "rms_norm",
            [](Program& self, int64_t x, nb::handle weight, float eps, int64_t out) {
                const Tensor weight_view = view(weight, "weight");
                weight_view.require_shape({-1});
                self.rms_norm(x, weight_view, eps, out);
            },
            "x"_a, "weight"_a, "eps"_a, "out"_a)
        .def(
            "packed_linears",
            [](Program& self, int64_t x, nb::handle norm, float eps, nb::list layers) {
                std::vector<Program::RecordedLayer> recorded;
                for (nb::handle layer : layers)
                    recorded.push_back({{view(layer[0], "weight"), kept(nb::cast<std::string_view>(layer[1]))},
                                        optional_view(layer[2], "bias"),
                                        nb::cast<int64_t>(layer[3]),
                                        held_of(nb::cast<std::string_view>(layer[4]))});
                const std::optional<Tensor> weight = optional_view(norm, "norm");
                self.packed_linears(x, weight ? std::optional(trivium::RowNorm{*weight, eps}) : std::nullopt,
                                    std::move(recorded));
            },
            "x"_a, "norm"_a.none(), "eps"_a, "layers"_a,
            "`norm`: of rows of x, or None. Each layer: (weight, type, bias or None, out, what `out` holds: 'nothing', "
            "'summand', or where it holds gates, outputs of the layer before, the name of their activation).")
        .def("rotary", &Program::rotary, "q"_a, "k"_a, "dim"_a, "rotation"_a, "q_out"_a, "k_out"_a)
        .def(
            "write_kv",
            [](Program& self, int64_t k, int64_t v, nb::handle key_cache, nb::handle value_cache, int64_t group) {
                self.write_kv(k, v, view(key_cache, "key_cache"), view(value_cache, "value_cache"), group);
            },
            "k"_a, "v"_a, "key_cache"_a, "value_cache"_a, "group"_a)
        .def(
            "paged_attention",
            [](Program& self, int64_t q, nb::handle key_cache, nb::handle value_cache, int64_t group, float scale,
               std::optional<int64_t> window, std::optional<float> softcap, int64_t out) {
                self.paged_attention(q,
                                     {view(key_cache, "key_cache"), view(value_cache, "value_cache"), group, scale,
                                      window.value_or(0), softcap.value_or(0.0f)},
                                     out);
            },
            "q"_a, "key_cache"_a, "value_cache"_a, "group"_a, "scale"_a, "window"_a.none(), "softcap"_a.none(), "out"_a)
        .def(
            "gated",
            [](Program& self, int64_t gate, int64_t up, std::string_view activation, int64_t out) {
                self.gated(gate, up, activation_of(activation), out);
            },
            "gate"_a, "up"_a, "activation"_a, "out"_a)
        .def("route", &Program::route, "logits"_a, "top_k"_a, "normalized"_a, "out"_a)
        .def(
            "experts",
            [](Program& self, int64_t x, int64_t routed, nb::handle gate, TypeName gate_type, nb::handle up,
               TypeName up_type, nb::handle down, TypeName down_type, int64_t wide, std::string_view activation,
               int64_t out) {
                self.experts(x, routed,
                             {{view(gate, "gate"), kept(gate_type)},
                              {view(up, "up"), kept(up_type)},
                              {view(down, "down"), kept(down_type)},
                              wide},
                             activation_of(activation), out);
            },
            "x"_a, "routed"_a, "gate"_a, "gate_type"_a, "up"_a, "up_type"_a, "down"_a, "down_type"_a, "wide"_a,
            "activation"_a, "out"_a)
        .def("add", &Program::add, "x"_a, "y"_a, "out"_a)
        .def(
            "run",
            [](Program& self, nb::handle ids, nb::list rotations, nb::list groups, nb::handle wanted, int64_t result,
               nb::handle out) {
                StepTensors step;
                step.ids = view(ids, "ids");
                for (nb::handle pair : rotations)
                    step.rotations.push_back({view(pair[0], "cos"), view(pair[1], "sin")});
                for (nb::handle group : groups)
                    step.groups.push_back({{view(group[0], "query_starts"), view(group[1], "context_lens"),
                                            view(group[2], "block_table")},
                                           view(group[3], "slots")});
                const std::optional<Tensor> wanted_view = optional_view(wanted, "wanted");
                const Tensor out_view = view(out, "out");
                nb::gil_scoped_release released;
                self.run(step, wanted_view, result, out_view);
            },
            "ids"_a, "rotations"_a, "groups"_a, "wanted"_a.none(), "result"_a, "out"_a);
}
