"""What holds for the tests of all packages."""

from __future__ import annotations

import signal

from plugrl.testing import fork_server

# Whatever ranks and command lines of many tests import, at a second and more for each process.
fork_server.SHARED += ["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo"]
fork_server.SHARED += ["transformers.modeling_utils", "transformers.models.qwen3.modeling_qwen3", "peft"]
fork_server.SHARED += ["transformers.models.llama.modeling_llama"]
fork_server.SHARED += ["transformers.models.auto.modeling_auto", "plugrl.runners.main", "plugrl.cli.commands"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
