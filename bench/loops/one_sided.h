// Measures one-sided operations, as loops.h measures messages. Rank 0 starts the operations. Rank 1
// owns the memory and waits in a call to the library.
//
// In addition to the functions of loops.h, a back end has
//   static constexpr bool kOneSided = true
//   expose(bytes, slots, exposed)     replaces prepare(); the peer can access the |exposed| buffers
//   put(slot)                         starts a put without waiting
//   start_put(slot), start_get(slot)  starts one of several concurrent puts or gets
//   start_add(slot)                   adds 1 to the word of the slot
//   previous(slot)                    the word before the addition
//   reap()                            completes all started operations on this side
//   finish()                          completes all started operations on both sides
//   progress()                        drives communication once, without waiting
//   watch(slot)                       host memory only
// and, if kNotifies,
//   start_notified_put(slot), take_notification()
//
//   put_latency           puts back and forth; the target polls the last byte of its memory
//   put_notify_latency    notified puts back and forth; the target waits for the notification
//   put_notify_bandwidth  |window| notified puts at a time, all taken by the owner
//   other tests           |window| operations at a time (latency: one) until they have taken effect
#pragma once

#include <cstdint>
#include <cstring>

#include "bench/loops/buffers.h"
#include "bench/loops/measuring.h"

namespace bench {

template <class Backend>
class OneSidedLoops : private Measuring<OneSidedLoops<Backend>, Backend> {
 public:
  OneSidedLoops(Backend& backend, const Workload& workload) : Shared(backend, workload) {
    if (workload.test.compare(0, 4, "get_") == 0) kind_ = Kind::kGet;
    if (workload.test.compare(0, 10, "fetch_add_") == 0) kind_ = Kind::kAdd;
    if (workload.test.compare(0, 11, "put_notify_") == 0) kind_ = Kind::kNotifiedPut;
    ping_pong_ = is_latency(workload.test) && (kind_ == Kind::kPut || kind_ == Kind::kNotifiedPut);
  }

  // Measures one point, as Loops::measure() does.
  Measurement measure(const Point& point) {
    point_ = point;
    if (is_latency(workload_.test)) point_.window = 1;
    if (backend_.rank() < 2) {
      backend_.expose(point_.bytes, point_.window,
                      kind_ == Kind::kGet ? Exposed::kSend : Exposed::kReceive);
    }
    added_ = 0;
    write_patterns(0);
    Measurement measurement;
    measurement.point = point_;
    this->barrier();
    this->measure_passes(ping_pong_ ? 2 : step(), ping_pong_ ? 2 : 1, &measurement);
    measurement.path = backend_.path();
    if (workload_.check) measurement.wrong = verify();
    // The owner must keep its memory until its peer has finished using it.
    this->barrier();
    return measurement;
  }

 private:
  using Shared = Measuring<OneSidedLoops<Backend>, Backend>;
  friend Shared;
  using Shared::backend_;
  using Shared::point_;
  using Shared::workload_;

  enum class Kind { kPut, kNotifiedPut, kGet, kAdd };
  // Number of reads of the memory, about 300 ns in total, between two calls that drive
  // communication. If such a call is in progress when the message arrives, it adds time that
  // polling alone would not take.
  static constexpr int kLooks = 1000;

  int step() const { return point_.window; }
  double agreed(double seconds) { return this->share(seconds); }

  template <class Clock>
  void pass(int64_t iterations, Clock& clock) {
    if (backend_.rank() > 1) return;
    if (kind_ == Kind::kPut) {
      ping_pong_ ? put_latency_pass(iterations, clock)
                 : window_pass(iterations, clock, [&](int slot) { backend_.start_put(slot); });
    } else if (kind_ == Kind::kNotifiedPut) {
      if constexpr (Backend::kNotifies) {
        ping_pong_ ? notify_latency_pass(iterations, clock) : notify_window_pass(iterations, clock);
      }
    } else if (kind_ == Kind::kGet) {
      window_pass(iterations, clock, [&](int slot) { backend_.start_get(slot); });
    } else {
      window_pass(iterations, clock, [&](int slot) { backend_.start_add(slot); });
      added_ += iterations / step();
    }
  }

  template <class Clock, class Start>
  void window_pass(int64_t iterations, Clock& clock, Start start) {
    if (backend_.rank() != 0) return;
    for (int64_t i = 0; i < iterations; i += point_.window) {
      clock.start();
      for (int slot = 0; slot < point_.window; ++slot) start(slot);
      backend_.finish();
      clock.stop();
    }
  }

  // --- put_latency ------------------------------------------------------------------------------

  template <class Clock>
  void put_latency_pass(int64_t iterations, Clock& clock) {
    const bool first = backend_.rank() == 0;
    for (int64_t i = 0; i < iterations; ++i) {
      const uint64_t stamp = next_stamp();
      if (first) {
        clock.start();
        put_stamped(stamp);
        await(stamp);
        clock.stop();
      } else {
        await(stamp);
        put_stamped(stamp);
      }
    }
  }

  // Returns bytes that differ from those of the previous message and are never 0.
  uint64_t next_stamp() { return (0x80 | (++stamps_ & 0x7f)) * 0x0101010101010101; }
  uint64_t stamped_bytes() const { return std::min<uint64_t>(point_.bytes, sizeof(uint64_t)); }

  // Writes the stamp to the end of slot 0, with one store if possible because the put is about to
  // load it, and puts the slot.
  void put_stamped(uint64_t stamp) {
    uint8_t* end = backend_.send_slot(0) + point_.bytes;
    if (point_.bytes >= sizeof stamp) {
      std::memcpy(end - sizeof stamp, &stamp, sizeof stamp);
    } else {
      std::memcpy(end - point_.bytes, &stamp, static_cast<size_t>(point_.bytes));
    }
    backend_.put(0);
  }

  void await(uint64_t stamp) {
    volatile uint8_t* last = backend_.watch(0) + point_.bytes - 1;
    const uint8_t expected = static_cast<uint8_t>(stamp);
    for (int looks = 1; __atomic_load_n(last, __ATOMIC_ACQUIRE) != expected; ++looks) {
      if (looks % kLooks == 0) backend_.progress();
    }
    backend_.reap();
  }

  // --- put_notify -------------------------------------------------------------------------------

  template <class Clock>
  void notify_latency_pass(int64_t iterations, Clock& clock) {
    const bool first = backend_.rank() == 0;
    for (int64_t i = 0; i < iterations; ++i) {
      if (first) clock.start();
      if (first) backend_.start_notified_put(0);
      backend_.take_notification();
      if (first) clock.stop();
      if (!first) backend_.start_notified_put(0);
      backend_.reap();
    }
  }

  template <class Clock>
  void notify_window_pass(int64_t iterations, Clock& clock) {
    if (backend_.rank() == 0) {
      window_pass(iterations, clock, [&](int slot) { backend_.start_notified_put(slot); });
      return;
    }
    for (int64_t i = 0; i < iterations; ++i) backend_.take_notification();
  }

  // --- verification -----------------------------------------------------------------------------

  static constexpr uint64_t kExtraPatterns = 3;

  // Returns a seed that differs for each round, source rank and slot.
  static uint64_t seed_of(uint64_t round, int source, int slot) {
    return (round * 2 + static_cast<uint64_t>(source)) * 65536 + static_cast<uint64_t>(slot);
  }

  // Writes fresh patterns, so that old bytes cannot be mistaken for new ones. Sets the words of
  // fetch_add to 0 in round 0.
  void write_patterns(uint64_t round) {
    if (backend_.rank() > 1 || (!workload_.check && kind_ != Kind::kAdd)) return;
    for (int slot = 0; slot < point_.window; ++slot) {
      if (kind_ != Kind::kAdd) backend_.fill(slot, seed_of(round, backend_.rank(), slot));
      if (kind_ != Kind::kAdd || round == 0) backend_.clear(slot);
    }
  }

  int64_t count_wrong_words() {
    int64_t wrong = 0;
    for (int slot = 0; slot < point_.window; ++slot) {
      uint64_t word = static_cast<uint64_t>(added_);
      if (backend_.rank() == 0) wrong += backend_.previous(slot) != word - 1 ? 8 : 0;
      if (backend_.rank() != 1) continue;
      const uint64_t seen = *reinterpret_cast<volatile uint64_t*>(backend_.watch(slot));
      wrong += seen != word ? 8 : 0;
    }
    return wrong;
  }

  int64_t count_wrong_stamped(uint64_t seed) {
    const uint8_t* data = const_cast<const uint8_t*>(backend_.watch(0));
    const uint64_t plain = point_.bytes - stamped_bytes();
    int64_t wrong = count_wrong(data, plain, seed);
    for (uint64_t i = plain; i < point_.bytes; ++i) {
      wrong += data[i] != (0x80 | (stamps_ & 0x7f)) ? 1 : 0;
    }
    return wrong;
  }

  int64_t count_received(uint64_t round) {
    const int rank = backend_.rank();
    if (kind_ == Kind::kAdd) return count_wrong_words();
    const int receiver = kind_ == Kind::kGet ? 0 : 1;
    if (rank > 1 || (rank != receiver && !ping_pong_)) return 0;
    if (kind_ == Kind::kPut && ping_pong_) return count_wrong_stamped(seed_of(round, 1 - rank, 0));
    int64_t wrong = 0;
    for (int slot = 0; slot < point_.window; ++slot) {
      wrong += backend_.wrong(slot, seed_of(round, 1 - rank, slot));
    }
    return wrong;
  }

  // Verifies the results in the same way as Loops::verify(). The barriers separate the owner's
  // accesses from its peer's accesses.
  int64_t verify() {
    this->barrier();
    double wrong = static_cast<double>(count_received(0));
    for (uint64_t round = 1; round <= kExtraPatterns; ++round) {
      this->barrier();
      write_patterns(round);
      this->barrier();
      NoSamples clock;
      pass(step(), clock);
      if (backend_.rank() < 2) backend_.finish();
      this->barrier();
      wrong += static_cast<double>(count_received(round));
    }
    return static_cast<int64_t>(this->sum(wrong));
  }

  Kind kind_ = Kind::kPut;
  bool ping_pong_ = false;
  uint64_t stamps_ = 0;
  int64_t added_ = 0;  // sum of the additions to each word
};

}  // namespace bench
