// Closes descriptors in forked children.
//
// A forked child (a data loader, for example) inherits every descriptor. While the child is alive,
// the kernel keeps the connections of a parent that has died, and peers would not notice the death.
// The child therefore closes the connections, without sending anything. It also closes descriptors
// through which the kernel waits for the parent, such as a userfaultfd.
#pragma once

namespace hetcomm {

// Closes |fd| in children that are forked from now on, as long as it refers to the same object.
// [any-thread]
void close_in_forked_children(int fd);
// Stops closing |fd| in forked children. [any-thread]
void forget_in_forked_children(int fd);

// While a NoFork exists, no other thread forks through the C library. This makes it possible to
// open and register a descriptor, or to unregister and close it, without a child inheriting it in
// between. A thread that holds a NoFork must not fork and must not call the functions above.
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
