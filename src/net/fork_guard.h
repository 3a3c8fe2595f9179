// Closes descriptors in forked children.
//
// A forked child (a data loader, say) inherits every descriptor. While the child lives, the kernel
// keeps the connections of a parent that died, and peers would not learn of the death. The child
// therefore closes the connections, without sending anything. It also closes descriptors through
// which the kernel waits for this process.
#pragma once

namespace hetcomm {

// Closes |fd| in children that are forked from now on, as long as it refers to the same object.
// [any-thread]
void close_in_forked_children(int fd);
// Stops closing |fd| in forked children. [any-thread]
void forget_in_forked_children(int fd);

// While a NoFork exists, no other thread forks (through the C library). Under a NoFork, a
// descriptor can be opened and registered, or unregistered and closed, without a child that
// inherits it in between. A thread that holds a NoFork must not fork and must not call the
// functions above.
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
