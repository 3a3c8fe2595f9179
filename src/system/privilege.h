// Reports whether the user who started this process has all the rights of the process.
#pragma once

#include <cstdint>

namespace hetcomm {

// The user who chose the environment variables and the working directory of a process.
enum class Caller : uint8_t {
  kOwner,     // a user with the rights of the process
  kStranger,  // a user with fewer rights: the program is setuid, setgid or has file capabilities
};

// Returns the kind of user who started this process, as reported by the kernel (AT_SECURE).
// [any-thread]
Caller caller_of_process();

}  // namespace hetcomm
