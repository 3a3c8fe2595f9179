// Sets of processors, as many as the kernel has, and the processors that a thread may use.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hetcomm {

class ProcessorSet {
 public:
  static constexpr size_t kMax = 1 << 16;

  // Reads the kernel's form, such as "0-31,64,80-95". Nothing where |list| is not of that form, or
  // has numbers from kMax on.
  static std::optional<ProcessorSet> parse(std::string_view list);
  // Those that |thread| may use. Empty: the kernel does not say.
  static ProcessorSet of_thread(pthread_t thread);

  bool has(size_t processor) const;
  bool empty() const { return words_.empty(); }
  void add(size_t processor);
  void add(const ProcessorSet& others);
  // Removes those that are not among |others|.
  void keep(const ProcessorSet& others);
  // The kernel's form; "" for the empty set.
  std::string text() const;
  bool operator==(const ProcessorSet&) const = default;

 private:
  friend bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);
  static constexpr size_t kBits = 64;
  void drop_zeros();

  std::vector<uint64_t> words_;  // a bit for each processor; the last word is not 0
};

// Makes |thread| use only those of its processors that are |wanted|. Never gives it one that it may
// not use already. Returns whether it has been moved; it goes on where it is if none of its
// processors, or all of them, are wanted, and where the kernel forbids it.
bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);

}  // namespace hetcomm
