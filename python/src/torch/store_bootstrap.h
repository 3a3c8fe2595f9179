// Lets the ranks of a group find each other through PyTorch's store. For each rank, the store
// counts the attempts to create a group of this size. Keys contain the number of the attempt, so
// that old values in the store do no harm. A rank that fails also raises the counts of ranks that
// have not arrived, so that all ranks make the next attempt together.
//
// A rank that cannot take part at all stores its reason in the store. The others read it while they
// wait. In this case no rank raises the count of another, since each will find the reason, however
// late it arrives. A rank that arrives while the others are already retrying also finds the reason,
// and fails once, on its own.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include <hetcomm/bootstrap.h>

namespace hetcomm::torch_backend {

class StoreBootstrap {
 public:
  // Throws if this rank cannot take part, and stores the reason in the store.
  StoreBootstrap(hetcomm_context_t* context, c10::intrusive_ptr<c10d::Store> store, int rank,
                 int size);
  // Reports to the other ranks why |rank| does not take part. Without |generation|, the call counts
  // as a separate attempt. This is for a rank that has no context, and therefore no StoreBootstrap.
  // Never throws.
  static void refuse(c10d::Store& store, int rank, int size, const std::string& reason,
                     std::optional<int64_t> generation = std::nullopt) noexcept;
  ~StoreBootstrap() { hetcomm_bootstrap_destroy(bootstrap_); }
  StoreBootstrap(const StoreBootstrap&) = delete;
  StoreBootstrap& operator=(const StoreBootstrap&) = delete;

  hetcomm_bootstrap_t* handle() const { return bootstrap_; }
  // Returns the number of this rank's attempts, including the current one.
  uint32_t generation() const { return generation_; }
  // Abandons the attempt after a failure. store_error() may have more details afterwards. Never
  // throws.
  void give_up() noexcept;
  // Returns the store's last error, or "" if there was none.
  const std::string& store_error() const { return store_error_; }

 private:
  static hetcomm_status_t put(void* self, const char* key, const void* value, size_t size);
  static hetcomm_status_t get(void* self, const char* key, void* value, size_t* inout_size,
                              uint64_t timeout_ns);
  static hetcomm_status_t get_many(void* self, size_t count, const char* const* keys, size_t room,
                                   void* values, size_t* out_sizes, uint64_t timeout_ns);
  static hetcomm_status_t delete_key(void* self, const char* key);

  static std::string scope(int size);
  // Returns the key of the counter for |rank|'s attempts.
  static std::string counter(int rank, int size);
  static std::string prefix(int size, int64_t generation);
  hetcomm_status_t store_failed() noexcept;
  // Returns whether a rank has stored the reason why it does not take part. store_error() then
  // returns that reason. Throws the store's exceptions.
  bool finds_reason();
  // Waits for |keys|. Returns OK, TIMED_OUT, or BOOTSTRAP_FAILED if a rank does not take part.
  // Throws the store's exceptions.
  hetcomm_status_t wait(const std::vector<std::string>& keys, std::chrono::milliseconds limit);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  std::string prefix_;
  uint32_t generation_ = 0;
  std::string store_error_;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
};

}  // namespace hetcomm::torch_backend
