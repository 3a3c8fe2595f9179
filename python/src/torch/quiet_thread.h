// Starts threads that run only the library's code.
#pragma once

#include <functional>
#include <thread>

namespace hetcomm::torch_backend {

// Starts a thread on which the application's signal handlers do not run.
std::thread start_without_signals(std::function<void()> body);

}  // namespace hetcomm::torch_backend
