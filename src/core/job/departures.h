// The departures of a job: started operations that wait for users' streams. Under the baton.
//
//   add() --> each of its places waits in the line of its stream --> progress(): all were reached
//   --> no other departure is before it in an order of its composite operations
//   --> its operations depart
//
// Composite operations that keep an order (CompositeOperation::order()) are the collective
// operations of one communicator, and the executions of one redistribution. Each order is a
// separate line: waiting in one order holds back nothing in another.
//
// A stream that is held back for one departure reaches the place of the next one only when the
// operations of the first have ended. So only the first place in each line is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/memory.h"
#include "src/core/memory/user_stream.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Operations that start together, once the streams that they name have reached them.
class Departure {
 public:
  // Puts a place into each of |streams|, which differ. [any-thread]
  static Result<std::unique_ptr<Departure>> make(std::span<UserStream* const> streams);
  // Makes a departure that waits for no stream.
  Departure() = default;
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // Makes room for |count| operations. May throw std::bad_alloc.
  void reserve(size_t count) { operations_.reserve(count); }
  // |operation|, which has begun and for which there is room, will depart. Its stream is one of
  // those of the departure.
  void join(Operation& operation) HETCOMM_UNDER_BATON;
  // No more operations will join. Streams that none of them names go on.
  void close() HETCOMM_UNDER_BATON;

 private:
  friend class Departures;
  std::vector<StreamPlace> places_;
  size_t places_left_ = 0;              // not reached yet
  std::vector<Operation*> operations_;  // null: it has ended
  // The departure's place in an order of its composite operations.
  struct OrderPlace {
    const void* order;
    std::list<Departure*>::iterator at;
  };
  std::vector<OrderPlace> orders_;                          // each order once
  Departure* next_released_ = nullptr;                      // in Departures::released_
  bool is_released_ = false;                                // it is in that list
  std::list<std::unique_ptr<Departure>>::iterator self_{};  // position in Departures::all_
};

class Departures {
 public:
  explicit Departures(DeviceSet& devices) : devices_(devices) {}
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  // Takes |departure| over; its operations join before the next pass. |orders| are those of its
  // composite operations, each once. May throw std::bad_alloc, and has then let its streams go on.
  Departure& add(std::unique_ptr<Departure> departure,
                 std::vector<const void*> orders) HETCOMM_UNDER_BATON;
  // Whether a composite operation of |order| that starts now has to depart after others.
  bool holds_back(const void* order) const HETCOMM_UNDER_BATON {
    if (orders_.empty()) return false;
    const auto found = orders_.find(order);
    return found != orders_.end() && !found->second.departures.empty();
  }
  bool holds_back(const Operation& operation) const HETCOMM_UNDER_BATON {
    return !orders_.empty() && operation.kind == OperationKind::kCollective &&
           holds_back(operation.composite->order());
  }

  // |operation|, which has joined a departure, ends before it departs. Other departures may then go
  // in the next pass.
  void leave(Operation& operation) HETCOMM_UNDER_BATON;

  // Calls use(operation) for those that wait, the oldest first. |use| may end any of them.
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (const auto& departure : all_) {
      if (departure == nullptr) continue;
      for (size_t i = 0; i < departure->operations_.size(); ++i) {
        if (departure->operations_[i] != nullptr) use(*departure->operations_[i]);
      }
    }
  }
  // Device |index| was given up, so its streams are no longer waited for. Ends the operations that
  // wait for them.
  void on_abandoned(size_t index) HETCOMM_UNDER_BATON;
  // Whether no stream is waited for, and no departure may go.
  bool idle() const HETCOMM_UNDER_BATON { return lines_.empty() && !ready(); }
  // Whether a pass would find something to do.
  bool ready() const HETCOMM_UNDER_BATON { return changed_ != nullptr || released_ != nullptr; }
  int progress() HETCOMM_UNDER_BATON;
  // These promise what Staging's functions of the same names promise.
  bool prepare_sleep() HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;

 private:
  struct Waiting {
    Departure* departure;
    StreamPlace* place;
  };
  // The places that one stream has not reached, in its order.
  struct Line {
    UserStream* stream;
    std::deque<Waiting> waiting{};
    bool ends_sleep = false;  // the device has promised to, for the first one
  };
  // The waiting departures with operations of one order, in the order of the calls.
  struct Order {
    std::list<Departure*> departures{};
    // Another departure may be the first one since depart_in_order() has looked. An order without
    // departures stays until then.
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
  const void* changed_ = nullptr;  // the first of a list of orders that have changed
  // The first of a list of departures that have left all of their orders and whose streams had come
  // to them before. Nothing else will look at them.
  Departure* released_ = nullptr;
};

}  // namespace hetcomm
