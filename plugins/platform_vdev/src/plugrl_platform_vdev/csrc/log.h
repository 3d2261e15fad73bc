// The operator log: one line of JSON per operator, one file per process.
#pragma once
#include <string>

namespace vdev {

void log_operator(const std::string& name, int index, bool falls_back);

}  // namespace vdev
