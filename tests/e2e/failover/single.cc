// Scenarios with one operation at a time.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/e2e/failover/rank.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kTag = 5;

// Measures how much of a memory block has arrived, by checking one byte in each piece.
class Arrival {
 public:
  Arrival(std::byte* bytes, uint64_t size) : bytes_(bytes) {
    for (uint64_t at = kPiece - 1; at < size; at += kPiece) {
      left_.push_back(at);
      bytes[at] = static_cast<std::byte>(~static_cast<uint8_t>(last_byte(at)));
    }
    total_ = left_.size();
  }
  // Checks which pieces have arrived.
  void look() {
    const size_t before = left_.size();
    std::erase_if(left_, [&](uint64_t at) {
      const volatile std::byte& byte = bytes_[at];
      return byte == last_byte(at);
    });
    const auto now = Clock::now();
    if (left_.size() != before || left_.size() == total_) {
      last_ = now;
      return;
    }
    const double pause = std::chrono::duration<double>(now - last_).count();
    longest_ = std::max(longest_, pause);
  }
  double part() const {
    return 1 - static_cast<double>(left_.size()) / static_cast<double>(total_);
  }
  double longest() const { return longest_; }

 private:
  static constexpr uint64_t kPiece = 64 << 10;
  std::byte last_byte(uint64_t at) const {
    std::byte piece[8];
    const uint64_t start = at / 8 * 8;
    const uint64_t word = mix(seed_ + start);
    std::memcpy(piece, &word, 8);
    return piece[at - start];
  }

  std::byte* bytes_;
  uint64_t seed_ = 1;
  size_t total_ = 0;
  std::vector<uint64_t> left_;
  Clock::time_point last_ = Clock::now();
  double longest_ = 0;
};

}  // namespace

// Rank 0 sends or puts, or rank 1 gets, while rank 1 watches its memory.
void play_bulk(Rank& rank, const std::string& how, uint64_t size) {
  Rank::Window window = rank.open_window(how == "send" ? 4096 : size);
  std::vector<std::byte> own(how == "put" && rank.rank() == 1 ? 0 : size);
  std::byte* source = how == "get" ? window.bytes : own.data();
  if (rank.rank() == 0) fill(source, size, 1);
  // The rails are created and measured.
  std::vector<std::byte> warm(8 << 20);
  for (int i = 0; i < 12; ++i) {
    rank.finish(rank.rank() == 0 ? rank.send(kTag, warm.data(), warm.size())
                                 : rank.receive(kTag, warm.data(), warm.size()),
                "warming up");
  }
  rank.barrier();
  say("READY");
  const auto start = Clock::now();
  hetcomm_request_t* request = nullptr;
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = HETCOMM_OPERATION_NOTIFY;
  if (rank.rank() == 0) {
    if (how == "put") {
      CHECK(hetcomm_put(window.remote, 0, hetcomm_buffer_host(source, size), &options, &request));
      rank.finish(request, "a put");
    } else if (how == "send") {
      rank.finish(rank.send(kTag, source, size), "a send");
    }
    rank.barrier();
  } else {
    std::byte* target = how == "put" ? window.bytes : own.data();
    Arrival arrival(target, size);
    if (how == "send") request = rank.receive(kTag, target, size);
    if (how == "get") {
      CHECK(hetcomm_get(window.remote, 0, hetcomm_buffer_host(target, size), nullptr, &request));
    }
    bool told = false;
    for (bool ended = false; !ended;) {
      if (request != nullptr) {
        hetcomm_completion_t completion;
        const hetcomm_status_t status = hetcomm_request_wait(request, 1'000'000, &completion);
        ended = status == HETCOMM_OK;
        if (ended) check(completion.status, completion.text);
      } else {
        hetcomm_notification_t note{};
        ended = hetcomm_memory_wait_notification(window.memory, 1'000'000, &note) == HETCOMM_OK;
      }
      arrival.look();
      if (!told && arrival.part() > 0.25) {
        told = true;
        say("PART %.2f", arrival.part());
      }
    }
    const double seconds = seconds_since(start);
    const uint64_t wrong = mismatch(target, size, 1);
    if (wrong != size) fail("%s of %lu bytes is wrong at %lu", how.c_str(), size, wrong);
    say("BULK %s %lu MiB in %.2f s, %.0f MB/s, longest pause %.3f s", how.c_str(), size >> 20,
        seconds, static_cast<double>(size) / seconds / 1e6, arrival.longest());
    rank.barrier();
  }
  rank.say_counters();
  rank.close_window(window);
}

// One operation of each kind is in flight when the test cuts the network; all must complete.
void play_cut_off(Rank& rank) {
  Rank::Window window = rank.open_window(64 << 20);
  rank.barrier();
  std::vector<std::byte> out(32 << 20);
  std::vector<std::byte> in(32 << 20);
  std::vector<std::byte> read(32 << 20);
  std::vector<std::byte> unmatched(64);
  say("READY");
  uint64_t previous = 0;
  struct Named {
    const char* what;
    hetcomm_request_t* request;
    bool again;
  };
  const auto begin = [&](int kind) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.flags = HETCOMM_OPERATION_NOTIFY;
    hetcomm_request_t* request = nullptr;
    switch (kind) {
      case 0:
        return rank.send(kTag, out.data(), out.size());
      case 1:
        return rank.receive(kTag, in.data(), in.size());
      case 2:
        CHECK(hetcomm_put(window.remote, 0, hetcomm_buffer_host(out.data(), out.size()), &options,
                          &request));
        return request;
      case 3:
        CHECK(hetcomm_get(window.remote, 32 << 20, hetcomm_buffer_host(read.data(), read.size()),
                          nullptr, &request));
        return request;
      case 4:
        CHECK(hetcomm_fetch_add(window.remote, 0, 1, &previous, nullptr, &request));
        return request;
      default:
        return rank.receive(kTag + 1, unmatched.data(), unmatched.size());
    }
  };
  static const char* const kNames[] = {"send", "receive", "put", "get", "fetch_add", "no message"};
  std::vector<Named> running;
  for (int kind = 0; kind < 6; ++kind) running.push_back({kNames[kind], begin(kind), true});
  Clock::time_point cut;
  bool was_cut = false;
  size_t left = running.size();
  while (left > 0) {
    if (rank.orders().stop && !was_cut) {  // the test reports the cut
      was_cut = true;
      cut = Clock::now();
    }
    hetcomm_notification_t note{};
    (void)!hetcomm_memory_wait_notification(window.memory, HETCOMM_TIMEOUT_POLL, &note);
    for (int kind = 0; kind < 6; ++kind) {
      Named& each = running[static_cast<size_t>(kind)];
      if (each.request == nullptr) continue;
      hetcomm_completion_t completion;
      const hetcomm_status_t status = hetcomm_request_wait(each.request, 500'000, &completion);
      if (status == HETCOMM_TIMED_OUT) continue;
      check(status, each.what);
      each.request = nullptr;
      if (completion.status == HETCOMM_OK) {
        each.request = begin(kind);
        continue;
      }
      --left;
      say("ENDED %s %s after %.2f s: %s", each.what, hetcomm_status_name(completion.status),
          was_cut ? seconds_since(cut) : 0.0, completion.text);
    }
  }
  hetcomm_request_t* late = rank.send(kTag, out.data(), 8);
  say("ENDED late %s", hetcomm_status_name(rank.wait(late).status));
  say("DONE");
  _exit(0);
}

namespace {

// Performs puts, gets and atomics one after the other for |seconds|. None may take that long.
void use_memory(const char* whose, hetcomm_remote_memory_t* remote, uint64_t offset,
                double seconds) {
  const auto start = Clock::now();
  std::vector<std::byte> out(2 << 20);
  std::vector<std::byte> in(2 << 20);
  uint64_t rounds = 0;
  double longest = 0;
  const auto finish = [](hetcomm_request_t* request, const char* what) {
    hetcomm_completion_t completion;
    CHECK(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion));
    check(completion.status, what);
  };
  while (seconds_since(start) < seconds) {
    const auto begun = Clock::now();
    const uint64_t size = rounds % 2 == 0 ? 64 : out.size();
    fill(out.data(), size, rounds);
    hetcomm_request_t* request = nullptr;
    CHECK(
        hetcomm_put(remote, offset + 64, hetcomm_buffer_host(out.data(), size), nullptr, &request));
    finish(request, "a put");
    CHECK(
        hetcomm_get(remote, offset + 64, hetcomm_buffer_host(in.data(), size), nullptr, &request));
    finish(request, "a get");
    if (std::memcmp(in.data(), out.data(), size) != 0) fail("a get reads something else");
    uint64_t previous = 0;
    CHECK(hetcomm_fetch_add(remote, offset, 1, &previous, nullptr, &request));
    finish(request, "a fetch_add");
    if (previous != rounds) fail("a fetch_add saw %lu, not %lu", previous, rounds);
    ++rounds;
    longest = std::max(longest, seconds_since(begun));
  }
  if (rounds < 3 || longest > seconds / 3) {
    fail("%lu rounds with memory of %s, the longest of %.3f s", rounds, whose, longest);
  }
  say("COMPUTE %lu rounds with memory of %s in %.1f s, the longest %.3f s", rounds, whose,
      seconds_since(start), longest);
}

}  // namespace

// Rank 1 computes while its background thread serves the accesses of rank 0, and of a separate
// thread of rank 1, to its memory.
void play_compute(Rank& rank, double seconds) {
  constexpr uint64_t kHalf = 4 << 20;
  Rank::Window window = rank.open_window(2 * kHalf);
  std::vector<char> key(HETCOMM_EXPORT_MAX_BYTES);
  size_t length = 0;
  CHECK(hetcomm_memory_export(window.memory, key.size(), key.data(), &length));
  hetcomm_remote_memory_t* own = nullptr;
  CHECK(hetcomm_memory_import(rank.world(), key.data(), length, &own));
  rank.barrier();
  if (rank.rank() == 1) {
    const auto start = Clock::now();
    std::thread beside([&] { use_memory("itself", own, kHalf, seconds * 0.8); });
    volatile uint64_t value = 1;
    while (seconds_since(start) < seconds) {
      for (int i = 0; i < 10'000; ++i) value = mix(value);
    }
    beside.join();
  } else {
    use_memory("a computing rank", window.remote, 0, seconds * 0.8);
  }
  rank.barrier();
  CHECK(hetcomm_remote_memory_destroy(own));
  rank.close_window(window);
}

}  // namespace hetcomm::test
