// Which of put and get moves bulk data faster to this rank from one peer.
//
// What is faster depends on the machine, on where the two processes run at the moment, on the size
// and on the load. So every size class keeps what both cost; the transfers themselves go by the
// cheaper way, and now and then a few by the other one. These trials may take a small share of the
// time that the others took, and come at once when the way in use has become slow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hetcomm {

class BulkChooser {
 public:
  // For the next transfer of |bytes| where both are possible.
  bool prefer_get(uint64_t bytes);
  // A transfer took |elapsed_ns| of the pair's time.
  void measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns);
  // A get of |bytes| went wrong, and puts did the rest: gets do not work.
  void get_failed(uint64_t bytes);
  // ns per byte so far, 0 when not measured.
  double cost(uint64_t bytes, bool by_get) const;

 private:
  enum Way : uint8_t { kPut, kGet };
  static constexpr size_t kClasses = 6;  // up to 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, more
  static constexpr uint32_t kBurst = 3;  // transfers of a trial
  // Share of the time that trials may cost more than the way in use.
  static constexpr double kShare = 0.015;
  // At least that many transfers lie between two trials.
  static constexpr uint32_t kBetweenTrials = 32;
  // A hasty trial comes because the way in use has become slow, and no budget pays for it. The
  // transfers before one double, up to this, as long as that way wins all the same.
  static constexpr uint32_t kMostBeforeHasty = 8192;
  // So many transfers in a row that take twice as long as before: something has changed.
  static constexpr uint32_t kSlowInRow = 4;
  // A trial goes on with new transfers when so many others have begun beside it.
  static constexpr uint32_t kLongestTrial = 256;

  struct Class {
    std::array<double, 2> ns_per_byte{};  // 0: unknown
    std::array<double, kBurst> trial{};   // what the trial has measured
    Way tried = kPut;
    uint32_t to_start = 0;      // transfers of the trial
    uint32_t to_measure = 0;    // of those, as many have not ended
    uint32_t beside_trial = 0;  // transfers that have begun since its last one
    uint32_t since_trial = 0;
    uint32_t before_hasty = kBetweenTrials;  // transfers before the next one
    bool hasty = false;                      // the trial is one
    bool guessed = false;                    // taken over from the class below
    uint32_t slow_in_row = 0;
    double budget_ns = 0;

    bool known() const { return ns_per_byte[kPut] > 0 && ns_per_byte[kGet] > 0; }
    // A read has to be clearly faster: it keeps the receiver busy alone.
    Way better() const { return ns_per_byte[kGet] < 0.9 * ns_per_byte[kPut] ? kGet : kPut; }
    void begin_trial(Way way);
    void begin_trial_if_due(uint64_t bytes);
    void end_trial();
    void measured_in_use(Way way, double sample, uint64_t elapsed_ns);
  };

  static size_t class_of(uint64_t bytes);
  Class& class_for(uint64_t bytes);

  std::array<Class, kClasses> classes_;
};

}  // namespace hetcomm
