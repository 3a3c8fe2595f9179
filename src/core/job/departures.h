// The departures of a job: started operations that wait for users' streams. Under the baton.
//
//   add() --> each of its places waits in its stream's line --> progress(): all were reached
//   --> it is first in every order of its composite operations
//   --> its operations depart
//
// Composite operations that keep an order (CompositeOperation::order()) are the collective
// operations of one communicator, and the executions of one redistribution. Each order is a
// separate line: waiting in one order holds back nothing in another.
//
// A stream that is held back for one departure reaches the place of the next one only after the
// operations of the first have ended. So only the first place in each line is checked.
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

// Operations that start together, once the streams that they name have reached them.
class Departure {
 public:
  // Adds a place to each of |streams|, which differ. [any-thread]
  static Result<std::unique_ptr<Departure>> make(std::span<UserStream* const> streams);
  // Makes a departure that waits for no stream.
  Departure() = default;
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // Makes room for |count| operations. May throw std::bad_alloc.
  void reserve(size_t count) { operations_.reserve(count); }
  // Adds |operation|, which has begun and for which there is room. Its stream is one of the
  // departure's.
  void join(Operation& operation) HETCOMM_UNDER_BATON;
  // Ends joining: no more operations will join. Resumes streams that no operation names.
  void close() HETCOMM_UNDER_BATON;

 private:
  friend class Departures;
  std::vector<StreamPlace> places_;
  size_t places_left_ = 0;              // number of places not reached yet
  std::vector<Operation*> operations_;  // null: the operation has ended
  // The departure's position in an order of its composite operations.
  struct OrderPlace {
    const void* order;
    std::list<Departure*>::iterator at;
  };
  std::vector<OrderPlace> orders_;                          // each order once
  Departure* next_released_ = nullptr;                      // in Departures::released_
  bool is_released_ = false;                                // it is in Departures::released_
  std::list<std::unique_ptr<Departure>>::iterator self_{};  // position in Departures::all_
};

// The place of an operation in a departure. Until the start the operation owns the departure.
struct DepartureSeat {
  static constexpr auto kRoom = &Operation::Bodies::departure;
  Departure* departure = nullptr;
  size_t index = 0;
};
inline DepartureSeat& departure_seat(Operation& operation) {
  return body_of<DepartureSeat>(operation);
}
// Gives |departure| to |operation|, which was not started yet.
inline void book_departure(Operation& operation, std::unique_ptr<Departure> departure) {
  operation.options.gated = true;
  departure_seat(operation).departure = departure.release();
}
// Takes back the departure that |operation| has booked. Returns null if it has booked none.
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

  // Takes ownership of |departure|; its operations join before the next pass. |orders| are the
  // orders of its composite operations, each once. May throw std::bad_alloc, and has then resumed
  // the departure's streams.
  Departure& add(std::unique_ptr<Departure> departure,
                 std::vector<const void*> orders) HETCOMM_UNDER_BATON;
  // Whether a composite operation of |order| that starts now must depart after others.
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
  // Whether no stream is waited for, and no departure can depart.
  bool idle() const HETCOMM_UNDER_BATON { return lines_.empty() && !ready(); }
  // Whether a pass would do any work.
  bool ready() const HETCOMM_UNDER_BATON { return changed_ != nullptr || released_ != nullptr; }
  int progress() HETCOMM_UNDER_BATON;
  // These two promise what Driven's functions of the same names promise.
  bool prepare_sleep() HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;

 private:
  struct Waiting {
    Departure* departure;
    StreamPlace* place;
  };
  // The places that one stream has not reached, in stream order.
  struct Line {
    UserStream* stream;
    std::deque<Waiting> waiting{};
    bool ends_sleep = false;  // the device has promised to, for the first place
  };
  // The waiting departures with operations of one order, in the order of their calls.
  struct Order {
    std::list<Departure*> departures{};
    // Whether another departure may have become first since the last depart_in_order(). An order
    // without departures is kept until the next one.
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
  void leave_order(const Departure::OrderPlace& place) HETCOMM_UNDER_BATON;
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
  // Head of a list of departures that have left all of their orders and whose streams had already
  // reached them. No other list leads to them.
  Departure* released_ = nullptr;
};

}  // namespace hetcomm
