// ProcessorSet is a set of processor numbers. It grows as needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hetcomm {

class ProcessorSet {
 public:
  static constexpr size_t kMax = 1 << 16;

  ProcessorSet() = default;
  // |words| holds one bit for each processor, starting at the lowest bit of the first word.
  explicit ProcessorSet(std::vector<uint64_t> words) : words_(std::move(words)) { drop_zeros(); }
  // Parses the kernel's format, such as "0-31,64,80-95". Returns std::nullopt if |list| is
  // malformed or contains a number of kMax or more.
  static std::optional<ProcessorSet> parse(std::string_view list);

  bool has(size_t processor) const;
  bool empty() const { return words_.empty(); }
  void add(size_t processor);
  void add(const ProcessorSet& others);
  // Removes the processors that are not in |others|.
  void keep(const ProcessorSet& others);
  // Returns the set in the kernel's format; "" for the empty set.
  std::string text() const;
  // Returns the words in the form that the constructor takes. The last word is not 0.
  const std::vector<uint64_t>& words() const { return words_; }
  bool operator==(const ProcessorSet&) const = default;

 private:
  static constexpr size_t kBits = 64;
  void drop_zeros();

  std::vector<uint64_t> words_;
};

}  // namespace hetcomm
