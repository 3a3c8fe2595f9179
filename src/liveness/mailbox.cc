#include "src/liveness/mailbox.h"

#include <unistd.h>

#include <utility>

namespace hetcomm::liveness {

Mailbox::~Mailbox() {
  for (std::unique_ptr<Mail> rest = take(); rest != nullptr;) rest = std::move(rest->next);
}

void Mailbox::push(std::unique_ptr<Mail> mail) {
  Mail* const added = mail.release();
  Mail* before = newest_.load(std::memory_order_relaxed);
  do {
    added->next.release();  // |before| is owned only once the exchange has succeeded
    added->next.reset(before);
  } while (!newest_.compare_exchange_weak(before, added, std::memory_order_release,
                                          std::memory_order_relaxed));
  const uint64_t one = 1;
  const ssize_t put = ::write(doorbell_, &one, sizeof(one));
  static_cast<void>(put);  // if the counter is full, a wake-up is already pending
}

std::unique_ptr<Mail> Mailbox::take() {
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
