#include "src/liveness/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hetcomm::liveness {

Result<std::shared_ptr<Mailbox>> Mailbox::create() {
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return status_from_errno(errno, "control plane: eventfd");
  return std::shared_ptr<Mailbox>(new Mailbox(std::move(wake)));
}

Mailbox::~Mailbox() {
  for (std::unique_ptr<Mail> rest = take(); rest != nullptr;) rest = std::move(rest->next);
}

void Mailbox::push(std::unique_ptr<Mail> mail) {
  Mail* const added = mail.release();
  Mail* before = newest_.load(std::memory_order_relaxed);
  do {
    added->next.release();  // not owned before the exchange has succeeded
    added->next.reset(before);
  } while (!newest_.compare_exchange_weak(before, added, std::memory_order_release,
                                          std::memory_order_relaxed));
  const uint64_t one = 1;
  const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
  static_cast<void>(put);  // full means that it is readable already
}

std::unique_ptr<Mail> Mailbox::take() {
  uint64_t count = 0;
  const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  static_cast<void>(got);  // nothing to read: somebody took the mail before
  std::unique_ptr<Mail> newest(newest_.exchange(nullptr, std::memory_order_acquire));
  std::unique_ptr<Mail> oldest;
  while (newest != nullptr) {
    std::unique_ptr<Mail> next = std::move(newest->next);
    newest->next = std::move(oldest);
    oldest = std::move(newest);
    newest = std::move(next);
  }
  return oldest;
}

}  // namespace hetcomm::liveness
