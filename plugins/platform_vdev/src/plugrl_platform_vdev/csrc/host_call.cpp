#include "host_call.h"

#include <ATen/ops/empty.h>

#include "guard.h"
#include "memory.h"

namespace vdev {
namespace {

at::Tensor make_tensor(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.unsafeGetTensorImpl()->dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) {
    tensor._set_conj(true);
  }
  if (like.is_neg()) {
    tensor._set_neg(true);
  }
  return tensor;
}

void release_storage(void* context) {
  delete static_cast<c10::Storage*>(context);
}

// The host may enlarge the storage when it resizes a result; then it has memory of its own.
c10::Storage host_storage(const c10::Storage& storage) {
  auto* keep = new c10::Storage(storage);
  c10::DataPtr data(storage.mutable_data(), keep, &release_storage, c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
      c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
}

}  // namespace

void HostCall::check_device(const at::Tensor& tensor, bool may_be_on_host) {
  if (is_mutant("mixed_devices_accepted") || may_be_on_host) {
    if (index_ < 0 && tensor.device().type() == kVdev) {
      index_ = tensor.device().index();
    }
    return;
  }
  if (tensor.device().type() == kVdev) {
    const int index = tensor.device().index();
    TORCH_CHECK(index_ < 0 || index == index_, "Expected all tensors to be on the same device, but found at least two "
        "devices, vdev:", index_, " and vdev:", index, "! (when checking the arguments of ", name_, ")");
    index_ = index;
  } else if (tensor.dim() > 0) {
    host_operand_ = true;
  }
  TORCH_CHECK(!(host_operand_ && index_ >= 0), "Expected all tensors to be on the same device, but found at least two "
      "devices, vdev:", index_, " and cpu! (when checking the arguments of ", name_, ")");
}

at::Tensor HostCall::to_host(const at::Tensor& tensor, bool may_be_on_host) {
  if (!tensor.defined()) {
    return tensor;
  }
  check_device(tensor, may_be_on_host);
  if (tensor.device().type() != kVdev) {
    return tensor;
  }
  TORCH_CHECK(tensor.layout() == c10::kStrided, name_, " got a tensor of layout ", tensor.layout(),
      "; vdev has dense tensors only.");
  const auto& storage = tensor.storage();
  for (const auto& [host, device] : storages_) {
    if (device.is_alias_of(storage)) {
      return make_tensor(host, c10::DispatchKey::CPU, tensor);
    }
  }
  storages_.emplace_back(host_storage(storage), storage);
  return make_tensor(storages_.back().first, c10::DispatchKey::CPU, tensor);
}

at::Tensor HostCall::to_device(const at::Tensor& host) {
  if (!host.defined() || !host.device().is_cpu() || host.layout() != c10::kStrided) {
    return host;
  }
  for (const auto& [shared, device] : storages_) {
    if (shared.is_alias_of(host.storage())) {
      return make_tensor(device, c10::DispatchKey::PrivateUse1, host);
    }
  }
  storages_.emplace_back(host.storage(), adopt(host.storage(), device_index(current_device())));
  return make_tensor(storages_.back().second, c10::DispatchKey::PrivateUse1, host);
}

void HostCall::write_back(const at::Tensor& host, const at::Tensor& argument) {
  if (!host.defined() || argument.device().type() != kVdev) {
    return;
  }
  auto* impl = argument.unsafeGetTensorImpl();
  const bool same_memory = host.storage().data() == argument.storage().data();
  if (same_memory && host.sizes() == argument.sizes() && host.strides() == argument.strides()) {
    return;
  }
  if (!same_memory) {
    auto& storage = *argument.storage().unsafeGetStorageImpl();
    resize_storage(storage, host.storage().nbytes());
    std::memcpy(storage.mutable_data(), host.storage().data(), host.storage().nbytes());
  }
  impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
}

}  // namespace vdev
