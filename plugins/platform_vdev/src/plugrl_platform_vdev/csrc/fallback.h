// What every operator passes before it runs, and the one kernel that carries out those without a kernel of their own.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "settings.h"

namespace vdev {

// Note an operator in the log; raise for one that strict mode or a fault refuses, and when the device is lost.
void before_operator(const std::string& name, int index, bool falls_back);

// Register what the mutants need besides: operators that torch would take apart, and check, before they come here.
void register_mutant_kernels();

// Carry an operator out on the host, whatever it is.
void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace vdev
