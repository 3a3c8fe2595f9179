#include "python/src/torch/shared_context.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "python/src/torch/status.h"

namespace hetcomm::torch_backend {
namespace {

// torchrun users choose Gloo's interface by this name; ours goes first.
void add_gloo_interface(std::string& settings) {
  const char* gloo = std::getenv("GLOO_SOCKET_IFNAME");
  if (gloo == nullptr || gloo[0] == '\0' || std::getenv("HETCOMM_INTERFACE") != nullptr ||
      settings.find("INTERFACE=") != std::string::npos) {
    return;
  }
  if (!settings.empty()) settings += ';';
  settings += std::string("INTERFACE=") + gloo;
}

}  // namespace

std::shared_ptr<SharedContext> SharedContext::get(const std::string& settings) {
  using Key = std::pair<int, std::string>;
  // Never destroyed: process groups may outlive static objects.
  static auto& mutex = *new std::mutex;
  static auto& contexts = *new std::map<Key, std::weak_ptr<SharedContext>>;
  const std::scoped_lock lock(mutex);
  std::weak_ptr<SharedContext>& slot = contexts[Key(getpid(), settings)];
  std::shared_ptr<SharedContext> context = slot.lock();
  if (!context) {
    context = std::make_shared<SharedContext>(settings);
    slot = context;
  }
  return context;
}

SharedContext::SharedContext(const std::string& settings) : process_(getpid()) {
  std::string all = settings;
  add_gloo_interface(all);
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD;
  options.settings = all.empty() ? nullptr : all.c_str();
  check("creating a context", hetcomm_context_create(&options, &context_));
}

SharedContext::~SharedContext() {
  // BUSY: a group could not be closed. It keeps its context.
  if (alive()) static_cast<void>(hetcomm_context_destroy(context_));
}

bool SharedContext::alive() const { return getpid() == process_; }

}  // namespace hetcomm::torch_backend
