// The device and the streams that a thread works on.
#pragma once
#include "settings.h"

namespace vdev {

int current_device();
void set_current_device(int index);  // raises for an index of no visible device
bool is_used(int index);             // whether this process ever chose the device

// Works on a device for the length of a block.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_;
};

}  // namespace vdev
