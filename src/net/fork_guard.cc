#include "src/net/fork_guard.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace hetcomm {
namespace {

struct Entry {
  int fd;
  // Descriptor numbers are reused, but device and inode numbers of sockets and the like are not.
  dev_t device;
  ino_t inode;
};
struct Guarded {
  std::mutex mutex;
  std::vector<Entry> entries;
};

// Returns the list. It is never destroyed, because a child may be forked while the process ends.
Guarded& guarded() {
  static auto* const instance = new Guarded();
  return *instance;
}

// Holds the mutex during a fork, so that the child finds the list consistent.
void before_fork() { guarded().mutex.lock(); }
void after_fork_in_parent() { guarded().mutex.unlock(); }
void after_fork_in_child() {
  for (const Entry& entry : guarded().entries) {
    struct stat now {};
    if (fstat(entry.fd, &now) == 0 && now.st_dev == entry.device && now.st_ino == entry.inode) {
      ::close(entry.fd);
    }
  }
  guarded().entries.clear();
  guarded().mutex.unlock();
}

}  // namespace

void close_in_forked_children(int fd) { NoFork().close_in_children(fd); }

void forget_in_forked_children(int fd) { NoFork().forget(fd); }

NoFork::NoFork() {
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(registered);  // if memory runs out, a child keeps the descriptors it inherits
  guarded().mutex.lock();
}

NoFork::~NoFork() { guarded().mutex.unlock(); }

void NoFork::close_in_children(int fd) {
  struct stat now {};
  if (fstat(fd, &now) != 0) return;
  std::vector<Entry>& entries = guarded().entries;
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [fd](const Entry& entry) { return entry.fd == fd; });
  if (found != entries.end()) {
    *found = {fd, now.st_dev, now.st_ino};
  } else {
    entries.push_back({fd, now.st_dev, now.st_ino});
  }
}

void NoFork::forget(int fd) {
  std::erase_if(guarded().entries, [fd](const Entry& entry) { return entry.fd == fd; });
}

}  // namespace hetcomm
