#include "log.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "settings.h"

namespace vdev {

void log_operator(const std::string& name, int index, bool falls_back) {
  if (settings().log_folder.empty()) {
    return;
  }
  static std::mutex* mutex = new std::mutex();
  static FILE* file = nullptr;
  static pid_t owner = 0;
  std::lock_guard<std::mutex> lock(*mutex);
  if (file == nullptr || owner != getpid()) {  // a forked process writes a file of its own
    owner = getpid();
    const std::string path = settings().log_folder + "/operators-" + std::to_string(owner) + ".jsonl";
    file = std::fopen(path.c_str(), "a");
    if (file == nullptr) {
      return;
    }
    std::setvbuf(file, nullptr, _IOLBF, 1 << 12);  // whole lines survive a process that is killed
  }
  std::fprintf(file, "{\"op\": \"%s\", \"device\": \"vdev:%d\", \"fallback\": %s}\n", name.c_str(), index,
      falls_back ? "true" : "false");
}

}  // namespace vdev
