// Loads functions from a library at run time, into a table of function pointers.
#pragma once

#include <dlfcn.h>

#include <string>

namespace hetcomm {

// Library loads a shared library and never unloads it. Such libraries keep process-wide state, and
// the objects that they create may outlive the Library.
class Library {
 public:
  // Returns false if the library cannot be loaded; dlerror() gives the reason.
  bool load(const char* name) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return handle_ != nullptr;
  }
  // Finds a function. Sets |out| to null if the library has no such function.
  template <typename Function>
  void find(const char* name, Function& out) const {
    out = reinterpret_cast<Function>(dlsym(handle_, name));
  }
  // Finds a function as find() does, and records it as missing if the library does not have it.
  template <typename Function>
  void need(const char* name, Function& out) {
    find(name, out);
    if (out == nullptr) missing_ += missing_.empty() ? name : std::string(", ") + name;
  }
  // Returns the names of the missing functions; empty if there are none.
  const std::string& missing() const { return missing_; }

 private:
  void* handle_ = nullptr;
  std::string missing_;
};

}  // namespace hetcomm
