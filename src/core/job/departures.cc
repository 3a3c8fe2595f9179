#include "src/core/job/departures.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/core/peer/matching/messaging_communicator.h"

namespace hetcomm {

Result<std::unique_ptr<Departure>> Departure::make(std::span<UserStream* const> streams) {
  auto departure = std::make_unique<Departure>();
  departure->marks_.reserve(streams.size());
  for (UserStream* const stream : streams) {
    Result<StreamMark> mark = stream->record();
    if (!mark.ok()) return mark.status();
    departure->marks_.push_back(std::move(mark).value());
  }
  for (StreamMark& mark : departure->marks_) {
    HETCOMM_RETURN_IF_ERROR(mark.stream->hold(&mark));
  }
  departure->marks_left_ = departure->marks_.size();
  return departure;
}

void Departure::join(Operation& operation) {
  operations_.push_back(&operation);
  operation.phase = OperationPhase::kBehind;
  departure_seat(operation) = {this, operations_.size() - 1};
  if (!operation.options.on_stream) return;
  const auto mark = std::find_if(marks_.begin(), marks_.end(), [&](const StreamMark& each) {
    return each.stream == operation.order.stream;
  });
  operation.order.hold = mark->hold;
  if (mark->hold != nullptr) mark->hold->add_operation();
}

void Departure::close() {
  for (StreamMark& mark : marks_) {
    if (mark.hold != nullptr && !mark.hold->has_operations()) delete mark.hold;
    mark.hold = nullptr;
  }
}

Departures::Line& Departures::line_of(UserStream& stream) {
  for (Line& line : lines_) {
    if (line.stream == &stream) return line;
  }
  return lines_.emplace_back(Line{.stream = &stream});
}

// Returns whether |departure| is the first one in each of its orders.
bool Departures::is_first(const Departure& departure) const {
  return std::all_of(departure.orders_.begin(), departure.orders_.end(),
                     [&](const Departure::OrderPosition& position) HETCOMM_UNDER_BATON {
                       return orders_.at(position.order).departures.front() == &departure;
                     });
}

// Inserts |waiting| at the position of its mark in the stream. Threads that post concurrently may
// add their marks in a different order.
void Departures::line_up(Line& line, const Waiting& waiting) {
  auto after = line.waiting.end();
  while (after != line.waiting.begin() && std::prev(after)->mark->number > waiting.mark->number) {
    --after;
  }
  if (after == line.waiting.begin()) line.ends_sleep = false;
  line.waiting.insert(after, waiting);
}

Departure& Departures::add(std::unique_ptr<Departure> departure, std::vector<const void*> orders) {
  Departure& own = *departure;
  try {
    own.orders_.reserve(orders.size());
    all_.push_back(nullptr);
    for (StreamMark& mark : own.marks_) line_up(line_of(*mark.stream), {&own, &mark});
    for (const void* const order : orders) {
      std::list<Departure*>& line = orders_[order].departures;
      own.orders_.push_back({order, line.insert(line.end(), &own)});
    }
  } catch (...) {
    take_back(own);
    throw;
  }
  own.self_ = std::prev(all_.end());
  *own.self_ = std::move(departure);
  return own;
}

// Undoes add() for |departure|, which could not be added completely.
void Departures::take_back(Departure& departure) {
  for (Line& line : lines_) {
    std::erase_if(line.waiting, [&](const Waiting& each) { return each.departure == &departure; });
    line.ends_sleep = false;
  }
  std::erase_if(lines_, [](const Line& line) { return line.waiting.empty(); });
  leave_orders(departure);
  if (!all_.empty() && all_.back() == nullptr) all_.pop_back();
  departure.close();
}

// The departure remains, even if |operation| was its last one. It leaves the order of |operation|
// if it has no other operation in that order.
void Departures::leave(Operation& operation) {
  const DepartureSeat& seat = departure_seat(operation);
  Departure& departure = *seat.departure;
  departure.operations_[seat.index] = nullptr;
  if (operation.kind != OperationKind::kCollective) return;
  const void* const order = operation.composite->order();
  const auto keeps = [order](const Operation* each) HETCOMM_UNDER_BATON {
    return each != nullptr && each->kind == OperationKind::kCollective &&
           each->composite->order() == order;
  };
  if (std::any_of(departure.operations_.begin(), departure.operations_.end(), keeps)) return;
  const auto position =
      std::find_if(departure.orders_.begin(), departure.orders_.end(),
                   [order](const Departure::OrderPosition& each) { return each.order == order; });
  if (position == departure.orders_.end()) return;
  leave_order(*position);
  departure.orders_.erase(position);
  // The departure may now be first in each of its remaining orders.
  for (const Departure::OrderPosition& each : departure.orders_) mark_changed(each.order);
  if (departure.orders_.empty() && departure.marks_left_ == 0) {
    departure.is_released_ = true;
    departure.next_released_ = std::exchange(released_, &departure);
  }
}

// Allocates no memory.
void Departures::leave_order(const Departure::OrderPosition& position) {
  orders_.at(position.order).departures.erase(position.at);
  mark_changed(position.order);
}

void Departures::mark_changed(const void* key) {
  Order& order = orders_.at(key);
  if (std::exchange(order.has_changed, true)) return;
  order.next_changed = std::exchange(changed_, key);
}

void Departures::leave_orders(Departure& departure) {
  for (const Departure::OrderPosition& position : departure.orders_) leave_order(position);
  departure.orders_.clear();
}

int Departures::progress() {
  int moved = 0;
  // Departures start operations, which may append lines.
  for (auto line = lines_.begin(); line != lines_.end();) {
    moved += advance(*line);
    line = line->waiting.empty() ? lines_.erase(line) : std::next(line);
  }
  while (changed_ != nullptr || released_ != nullptr) {
    if (changed_ != nullptr) {
      moved += depart_in_order();
    } else {
      Departure& departure = *std::exchange(released_, released_->next_released_);
      departure.is_released_ = false;
      depart_if_ready(departure);
      ++moved;
    }
  }
  return moved;
}

// Removes the marks that the stream of |line| has reached, and returns their number. Departures
// that are now ready depart.
int Departures::advance(Line& line) {
  const Device& device = line.stream->device();
  int moved = 0;
  while (!line.waiting.empty()) {
    const auto [departure, mark] = line.waiting.front();
    const hetcomm_status_t status = device.table->event_query(device.instance, mark->event);
    if (status == HETCOMM_PENDING) break;
    line.waiting.pop_front();
    line.ends_sleep = false;
    mark->forget_event();
    --departure->marks_left_;
    ++moved;
    if (status != HETCOMM_OK) fail(*departure, device, status);
    depart_if_ready(*departure);
  }
  return moved;
}

// Ends the departure's operations, since earlier work in the stream has failed.
void Departures::fail(Departure& departure, const Device& device, hetcomm_status_t status) {
  const auto code = static_cast<Code>(status);
  const std::string why = text_or_none([&] {
    return fmt::format("{}: what the stream held before it has failed: {}", device.table->kind,
                       failure_text(device, status));
  });
  end_operations(departure, code, why);
}

void Departures::end_operations(Departure& departure, Code code, std::string_view why) {
  for (size_t i = 0; i < departure.operations_.size(); ++i) {
    Operation* const operation = departure.operations_[i];
    if (operation != nullptr) operation->communicator->end(*operation, code, why);
  }
}

void Departures::on_abandoned(size_t index) {
  const Status why = devices_.check(index);
  for (Line& line : lines_) {
    if (line.stream->device_index() != index) continue;
    line.ends_sleep = false;
    while (!line.waiting.empty()) {
      const auto [departure, mark] = line.waiting.front();
      line.waiting.pop_front();
      mark->abandon();
      --departure->marks_left_;
      end_operations(*departure, why.code(), why.text());
      depart_if_ready(*departure);
    }
  }
  std::erase_if(lines_, [](const Line& line) { return line.waiting.empty(); });
}

// Takes one order from the list of changed orders, and removes it if it is empty. Otherwise, its
// first departure departs if all its marks have been reached and it is first in each of its orders.
int Departures::depart_in_order() {
  const auto own = orders_.find(changed_);
  Order& order = own->second;
  changed_ = order.next_changed;
  order.has_changed = false;
  if (order.departures.empty()) {
    orders_.erase(own);
    return 0;
  }
  Departure& first = *order.departures.front();
  if (first.marks_left_ > 0 || !is_first(first)) return 0;
  depart_if_ready(first);
  return 1;
}

void Departures::depart_if_ready(Departure& departure) {
  // A released departure departs when progress() takes it from |released_|.
  if (departure.marks_left_ > 0 || departure.is_released_ || !is_first(departure)) return;
  leave_orders(departure);
  const std::unique_ptr<Departure> own = std::move(*departure.self_);
  all_.erase(own->self_);
  depart(*own);
}

void Departures::depart(Departure& departure) {
  for (Operation* const operation : departure.operations_) {
    if (operation == nullptr) continue;
    departure_seat(*operation).departure = nullptr;
    operation->phase = OperationPhase::kSubmitted;
    communicator_of(*operation).starter().depart(*operation);
  }
}

bool Departures::prepare_sleep() {
  bool all = true;
  for (Line& line : lines_) {
    const StreamMark& mark = *line.waiting.front().mark;
    all = all && devices_.ends_sleep(line.stream->device(), mark.event, &line.ends_sleep);
  }
  return all;
}

bool Departures::may_sleep_on() const {
  return std::all_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return line.ends_sleep; });
}

}  // namespace hetcomm
