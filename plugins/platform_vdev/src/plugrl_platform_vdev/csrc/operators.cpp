// The operators that a device must have itself: those that make tensors, view them, copy and resize them, and the
// convolutions, which torch leaves to the device whole.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "fallback.h"
#include "guard.h"
#include "host_call.h"
#include "memory.h"

namespace vdev {
namespace {

using at::Tensor;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

int index_of(std::optional<at::Device> device) {
  return device.has_value() && device->has_index() ? device->index() : current_device();
}

// ---------------------------------------------------------------------- making
Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "vdev has dense tensors only.");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense tensors of the host can be pinned, this one is of vdev.");
  CurrentDevice there(index_of(device));
  before_operator("aten::empty", current_device(), false);
  return Tensor(at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  CurrentDevice there(index_of(device));
  before_operator("aten::empty_strided", current_device(), false);
  return Tensor(at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// ---------------------------------------------------------------------- copying
Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  const auto& of = target.device().type() == kVdev ? target : source;
  CurrentDevice there(of.device().index());
  before_operator("aten::_copy_from", current_device(), false);
  HostCall call("aten::_copy_from");
  Tensor host = call.to_host(target, true);
  host.copy_(call.to_host(source, true), non_blocking);
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

// ---------------------------------------------------------------------- sizes and storages
const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  CurrentDevice there(self.device().index());
  before_operator("aten::resize_", current_device(), false);
  auto* impl = self.unsafeGetTensorImpl();
  const auto needed = at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), impl->storage_offset());
  if (needed > self.storage().nbytes()) {
    resize_storage(*self.storage().unsafeGetStorageImpl(), needed);
  }
  impl->set_sizes_contiguous(size);
  if (format.has_value() && *format != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_to(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  const auto contiguous = c10::contiguous_strides(size);
  const at::IntArrayRef strides = stride.empty() ? at::IntArrayRef(contiguous) : stride;
  at::native::checkInBoundsForStorage(size, strides, offset, self.dtype(), source);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides, offset);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const auto length = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_to(self, std::move(source), 0, {length}, {1});
}

Tensor& set_empty(Tensor& self) {
  CurrentDevice there(self.device().index());
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true);
  return set_to(self, std::move(nothing), 0, {0}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(source.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

// ---------------------------------------------------------------------- convolutions
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups) {
  HostCall call("aten::convolution_overrideable");
  const Tensor x = call.to_host(input), w = call.to_host(weight);
  const auto b = bias.has_value() ? std::optional<Tensor>(call.to_host(*bias)) : std::nullopt;
  CurrentDevice there(input.device().index());
  before_operator("aten::convolution_overrideable", current_device(), false);
  return call.to_device(at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  HostCall call("aten::convolution_backward_overrideable");
  const Tensor g = call.to_host(grad), x = call.to_host(input), w = call.to_host(weight);
  CurrentDevice there(input.device().index());
  before_operator("aten::convolution_backward_overrideable", current_device(), false);
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [gx, gw, gb] = at::convolution_backward(g, x, w, at::IntArrayRef{channels}, stride, padding, dilation,
      transposed, output_padding, groups, mask);
  if (is_mutant("wrong_conv_gradient") && gw.defined()) {
    gw.mul_(1.05);
  }
  return {call.to_device(gx), call.to_device(gw), call.to_device(gb)};
}

// Work on a stream is done when its call returns, so memory is never freed too early.
void record_stream(Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device() == self.device(), "A tensor of ", self.device(), " cannot be used on a stream of ",
      stream.device(), ".");
}

// The copy resolves conjugated and negated sources itself. torch would do it by a copy, and so on without an end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_to);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace
}  // namespace vdev
