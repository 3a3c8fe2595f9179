// One context for all process groups of a process that have the same settings, with a background
// thread that makes progress.
#pragma once

#include <memory>
#include <string>

#include <hetcomm/context.h>

namespace hetcomm::torch_backend {

class SharedContext {
 public:
  // The one with these settings ("NAME=value;..."), made on first use. A forked child gets its own.
  static std::shared_ptr<SharedContext> get(const std::string& settings);

  explicit SharedContext(const std::string& settings);
  ~SharedContext();
  SharedContext(const SharedContext&) = delete;
  SharedContext& operator=(const SharedContext&) = delete;

  hetcomm_context_t* handle() const { return context_; }
  // False in a forked child.
  bool alive() const;

 private:
  const int process_;
  hetcomm_context_t* context_ = nullptr;
};

}  // namespace hetcomm::torch_backend
