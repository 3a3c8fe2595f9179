// A forked child (a data loader, say) inherits every descriptor. While it lives its kernel keeps
// the connections of a parent that died, and peers would not learn of the death: so the child
// closes them, without a word on the wire. The same holds for a descriptor by which the kernel
// waits for this process.
#pragma once

namespace hetcomm {

// |fd| is closed in children that are forked from now on, as long as it is what it is now.
// [any-thread]
void close_in_forked_children(int fd);
// No longer. [any-thread]
void forget_in_forked_children(int fd);

// While a NoFork lives, no other thread forks (by the C library). So no child has a descriptor that
// has been opened and not been named yet, or is about to be closed and not named any more. A thread
// that has a NoFork neither forks nor calls the functions above.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;

  // See close_in_forked_children() and forget_in_forked_children().
  void close_in_children(int fd);
  void forget(int fd);
};

}  // namespace hetcomm
