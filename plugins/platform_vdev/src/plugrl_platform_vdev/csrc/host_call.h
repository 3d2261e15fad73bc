// One operator carried out by the host on the memory of a device, without a copy: arguments become host tensors on the
// same bytes, and results become tensors of the device.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "settings.h"

namespace vdev {

class HostCall {
 public:
  explicit HostCall(const char* operator_name) : name_(operator_name) {}

  // Return a host tensor on the memory of `tensor`; a tensor of the host as it is. Raises when arguments are on
  // different devices; `indices` may be on the host.
  at::Tensor to_host(const at::Tensor& tensor, bool may_be_on_host = false);

  // Return what the host made as a tensor of the device: a view of an argument's storage where it is one, else a tensor
  // that takes the memory over.
  at::Tensor to_device(const at::Tensor& host);

  // Carry a new size of a written argument, which the host may have moved to other memory, over to the argument.
  void write_back(const at::Tensor& host, const at::Tensor& argument);

  // The device of the arguments, else `fallback`.
  int device_index(int otherwise) const {
    return index_ >= 0 ? index_ : otherwise;
  }
  void set_device_index(int index) {
    index_ = index;
  }

 private:
  void check_device(const at::Tensor& tensor, bool may_be_on_host);

  const char* name_;
  int index_ = -1;
  bool host_operand_ = false;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // (the host's, the device's)
};

}  // namespace vdev
