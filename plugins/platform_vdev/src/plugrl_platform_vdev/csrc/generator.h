// The generators of the devices: a seed and an offset, 16 bytes of state, as the counter-based ones of real devices.
#pragma once
#include <ATen/core/Generator.h>

#include "settings.h"

namespace vdev {

const at::Generator& default_generator(int index);
at::Generator new_generator(int index);

// Return a generator of the host for one draw, made of the seed and the offset, which moves on.
// Raises when the generator belongs to another device.
at::Generator draw(const at::Generator& generator, int index);

}  // namespace vdev
