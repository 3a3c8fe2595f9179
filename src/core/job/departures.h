// A departure is a group of operations that wait for users' streams and then start together.
// Departures manages all departures of a job. Callers hold the baton.
//
// A departure has a mark in each stream that it waits for: the point that the stream must reach.
//
//   add() --> each mark waits in the line of its stream --> progress(): all marks were reached
//   --> the departure is first in every order of its composite operations
//   --> the departure departs: its operations start
//
// The collective operations of one communicator depart in the order of their calls, and so do the
// executions of one redistribution (CompositeOperation::order()). Each of these orders is separate:
// a departure that waits in one order does not delay departures in another.
//
// A stream that is held back for one departure reaches the mark of the next one only after the
// operations of the first have ended. Therefore only the first mark in each line is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"
#include "src/core/device/user_stream.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// A Departure holds operations that start together, once every stream that it waits for has reached
// its mark.
class Departure {
 public:
  // Makes a departure that waits for |streams|, which are all different. Records a mark in each of
  // them. [any-thread]
  static Result<std::unique_ptr<Departure>> make(std::span<UserStream* const> streams);
  // Makes a departure that waits for no stream.
  Departure() = default;
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // Reserves memory for |count| operations. May throw std::bad_alloc.
  void reserve(size_t count) { operations_.reserve(count); }
  // Adds |operation|, which has begun. reserve() must have reserved memory for it. If |operation|
  // names a stream, this departure must wait for that stream.
  void join(Operation& operation) HETCOMM_UNDER_BATON;
  // Records that no more operations will join. Resumes the streams that no operation names.
  void close() HETCOMM_UNDER_BATON;

 private:
  friend class Departures;
  std::vector<StreamMark> marks_;
  size_t marks_left_ = 0;               // number of marks not reached yet
  std::vector<Operation*> operations_;  // null: the operation has ended
  // The departure's position in an order of its composite operations.
  struct OrderPosition {
    const void* order;
    std::list<Departure*>::iterator at;
  };
  std::vector<OrderPosition> orders_;   // each order once
  Departure* next_released_ = nullptr;  // next in the list Departures::released_
  bool is_released_ = false;            // this is in Departures::released_
  std::list<std::unique_ptr<Departure>>::iterator self_{};  // position in Departures::all_
};

// Refers to the departure of an operation, and holds the operation's index in that departure. An
// operation owns the departure that book_departure() gives to it, until the operation starts.
struct DepartureSeat {
  static constexpr auto kRoom = &Operation::Bodies::departure;
  Departure* departure = nullptr;
  size_t index = 0;
};
inline DepartureSeat& departure_seat(Operation& operation) {
  return body_of<DepartureSeat>(operation);
}
// Gives |departure| to |operation|, which has not been started yet.
inline void book_departure(Operation& operation, std::unique_ptr<Departure> departure) {
  operation.options.gated = true;
  departure_seat(operation).departure = departure.release();
}
// Takes back the departure that book_departure() has given to |operation|. Returns null if there is
// none.
inline std::unique_ptr<Departure> take_departure(Operation& operation) {
  if (!operation.options.gated) return nullptr;
  operation.options.gated = false;
  return std::unique_ptr<Departure>(std::exchange(departure_seat(operation).departure, nullptr));
}

class Departures {
 public:
  explicit Departures(DeviceSet& devices) : devices_(devices) {}
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  // Takes ownership of |departure|. Its operations must join before the next pass. |orders| are the
  // orders of its composite operations, each once. If this throws std::bad_alloc, the departure's
  // streams have been resumed.
  Departure& add(std::unique_ptr<Departure> departure,
                 std::vector<const void*> orders) HETCOMM_UNDER_BATON;
  // Returns whether a composite operation of |order| that starts now must depart after others.
  bool holds_back(const void* order) const HETCOMM_UNDER_BATON {
    if (orders_.empty()) return false;
    const auto found = orders_.find(order);
    return found != orders_.end() && !found->second.departures.empty();
  }
  bool holds_back(const Operation& operation) const HETCOMM_UNDER_BATON {
    return !orders_.empty() && operation.kind == OperationKind::kCollective &&
           holds_back(operation.composite->order());
  }

  // Removes |operation|, which has joined a departure and ends before it departs. Other departures
  // may then depart in the next pass.
  void leave(Operation& operation) HETCOMM_UNDER_BATON;

  // Calls use(operation) for waiting operations, oldest first. |use| may end any of them.
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (const auto& departure : all_) {
      if (departure == nullptr) continue;
      for (size_t i = 0; i < departure->operations_.size(); ++i) {
        if (departure->operations_[i] != nullptr) use(*departure->operations_[i]);
      }
    }
  }
  // Ends the operations that wait for streams of device |index|, which was abandoned, and stops
  // waiting for these streams.
  void on_abandoned(size_t index) HETCOMM_UNDER_BATON;
  // Returns whether no departure waits for a stream, and none can depart.
  bool idle() const HETCOMM_UNDER_BATON { return lines_.empty() && !ready(); }
  // Returns whether a pass has work to do even if no stream has reached another mark.
  bool ready() const HETCOMM_UNDER_BATON { return changed_ != nullptr || released_ != nullptr; }
  int progress() HETCOMM_UNDER_BATON;
  // The next two functions behave like the functions of Driven with the same names.
  bool prepare_sleep() HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;

 private:
  struct Waiting {
    Departure* departure;
    StreamMark* mark;
  };
  // The marks that one stream has not reached, in stream order.
  struct Line {
    UserStream* stream;
    std::deque<Waiting> waiting{};
    bool ends_sleep = false;  // the device will wake a sleeping thread at the first mark
  };
  // The waiting departures that have operations of one order, in the order of their calls.
  struct Order {
    std::list<Departure*> departures{};
    // Set when another departure may have become first. depart_in_order() then checks this order,
    // and removes it if it has no departures.
    bool has_changed = false;
    const void* next_changed = nullptr;
  };
  Line& line_of(UserStream& stream) HETCOMM_UNDER_BATON;
  bool is_first(const Departure& departure) const HETCOMM_UNDER_BATON;
  static void line_up(Line& line, const Waiting& waiting) HETCOMM_UNDER_BATON;
  int advance(Line& line) HETCOMM_UNDER_BATON;
  static void fail(Departure& departure, const Device& device,
                   hetcomm_status_t status) HETCOMM_UNDER_BATON;
  static void end_operations(Departure& departure, Code code,
                             std::string_view why) HETCOMM_UNDER_BATON;
  void leave_order(const Departure::OrderPosition& position) HETCOMM_UNDER_BATON;
  void mark_changed(const void* key) HETCOMM_UNDER_BATON;
  void take_back(Departure& departure) HETCOMM_UNDER_BATON;
  void leave_orders(Departure& departure) HETCOMM_UNDER_BATON;
  int depart_in_order() HETCOMM_UNDER_BATON;
  void depart_if_ready(Departure& departure) HETCOMM_UNDER_BATON;
  static void depart(Departure& departure) HETCOMM_UNDER_BATON;

  DeviceSet& devices_;
  std::list<std::unique_ptr<Departure>> all_;
  std::list<Line> lines_;
  std::unordered_map<const void*, Order> orders_;
  const void* changed_ = nullptr;  // head of a list of orders that have changed
  // Head of a list of departures that can depart because leave() has taken them out of their last
  // order. They are no longer in any order or line, so progress() finds them only here.
  Departure* released_ = nullptr;
};

}  // namespace hetcomm
