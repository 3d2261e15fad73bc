// The cells of recurrent layers. torch hands them to a device whole, and has no kernel of the host for them; here they are
// made of other operators, of which torch knows the gradients.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "settings.h"

namespace vdev {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

// The gates of one step, cut into `count` equal parts.
std::vector<Tensor> parts(const Tensor& gates, const Bias& bias, int64_t count) {
  return (bias.has_value() && bias->defined() ? gates.add(*bias) : gates).chunk(count, 1);
}

// What the cells of other devices keep for their backward passes.
Tensor no_workspace(const Tensor& like) {
  return like.new_empty({0});
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
    const Bias& input_bias, const Bias& hidden_bias) {
  const auto input = parts(input_gates, input_bias, 4);
  const auto hidden = parts(hidden_gates, hidden_bias, 4);
  const Tensor in = input[0].add(hidden[0]).sigmoid();
  const Tensor forget = input[1].add(hidden[1]).sigmoid();
  const Tensor cell = input[2].add(hidden[2]).tanh();
  const Tensor out = input[3].add(hidden[3]).sigmoid();
  const Tensor cy = forget.mul(cx).add(in.mul(cell));
  return {out.mul(cy.tanh()), cy, no_workspace(cx)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
    const Bias& input_bias, const Bias& hidden_bias) {
  const auto input = parts(input_gates, input_bias, 3);
  const auto hidden = parts(hidden_gates, hidden_bias, 3);
  const Tensor reset = input[0].add(hidden[0]).sigmoid();
  const Tensor update = input[1].add(hidden[1]).sigmoid();
  const Tensor fresh = input[2].add(reset.mul(hidden[2])).tanh();
  return {hx.sub(fresh).mul(update).add(fresh), no_workspace(hx)};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
}

}  // namespace
}  // namespace vdev
