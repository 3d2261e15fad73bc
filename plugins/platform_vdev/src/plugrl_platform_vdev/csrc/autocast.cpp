// Autocast that casts: operators that torch's own devices compute in the lower precision, in fp32, or in the widest type
// of their arguments, in one kernel for each of these rules.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "settings.h"

// Declared here because <ATen/autocast_mode.h> brings in every operator of torch, and half a minute of compiling.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API Tensor cached_cast(at::ScalarType to_type, const Tensor& arg, c10::DeviceType device_type);
}  // namespace at::autocast

namespace vdev {
namespace {

// The lists of torch's documentation of automatic mixed precision, by name and overload.
constexpr const char* kLowerPrecision[] = {
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"};
constexpr const char* kFp32[] = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa", "norm.Scalar",
    "norm.ScalarOpt_dim", "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"};
constexpr const char* kWidest[] = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add"};

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kVdev && at::isFloatingType(tensor.scalar_type()) &&
      tensor.scalar_type() != at::kDouble;
}

// Apply `visit` to every tensor among the arguments, in lists too; it returns what takes the tensor's place.
template <typename Visit>
void for_each_tensor(const c10::OperatorHandle& op, torch::jit::Stack* stack, Visit visit) {
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = visit(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        tensors.push_back(visit(tensor));
      }
      value = std::move(tensors);
    }
  }
}

// Call the operator once more, cast, and without the rules for the operators inside it.
void call_cast(const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType type) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1));
  for_each_tensor(op, stack, [&](const at::Tensor& tensor) {
    return is_eligible(tensor) ? at::autocast::cached_cast(type, tensor, kVdev) : tensor;
  });
  op.callBoxed(stack);
}

void in_lower_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_cast(op, stack, at::autocast::get_autocast_dtype(kVdev));
}

// A caller that names the type of the result has decided.
bool names_a_type(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() == "dtype") {
      return !stack[stack.size() - declared.size() + i].isNone();
    }
  }
  return false;
}

void in_fp32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (names_a_type(op, *stack)) {
    c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1));
    op.callBoxed(stack);
    return;
  }
  call_cast(op, stack, at::kFloat);
}

void in_widest_type(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::ScalarType type = at::autocast::get_autocast_dtype(kVdev);
  for_each_tensor(op, stack, [&](const at::Tensor& tensor) {
    if (is_eligible(tensor) && tensor.scalar_type() == at::kFloat) {
      type = at::kFloat;
    }
    return tensor;
  });
  call_cast(op, stack, type);
}

template <c10::BoxedKernel::BoxedKernelFunction* rule, size_t N>
void add_rule(torch::Library& library, const char* const (&names)[N]) {
  for (const char* name : names) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<rule>());
  }
}

torch::Library* new_library(const char* name) {
  return new torch::Library(
      torch::Library::IMPL, name, c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
}

}  // namespace

// Called once the settings are known: the mutant leaves the rules out, so that autocast runs and casts nothing.
void register_autocast() {
  static torch::Library* others = nullptr;
  if (others != nullptr) {
    return;
  }
  others = new_library("_");
  others->fallback(torch::CppFunction::makeFallthrough());
  if (is_mutant("autocast_casts_not")) {
    return;
  }
  static torch::Library* rules = new_library("aten");
  add_rule<&in_lower_precision>(*rules, kLowerPrecision);
  add_rule<&in_fp32>(*rules, kFp32);
  add_rule<&in_widest_type>(*rules, kWidest);
}

}  // namespace vdev
