#include "src/core/job/departures.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "src/base/text.h"

namespace hetcomm {

size_t Departures::order_of(const CommunicatorBase& communicator) const {
  size_t index = 0;
  while (index < orders_.size() && orders_[index].communicator != &communicator) ++index;
  return index;
}

Departures::Line& Departures::line_of(UserStream& stream) {
  for (Line& line : lines_) {
    if (line.stream == &stream) return line;
  }
  return lines_.emplace_back(Line{.stream = &stream});
}

Departures::Order& Departures::order_in(CommunicatorBase& communicator) {
  const size_t index = order_of(communicator);
  return index < orders_.size() ? orders_[index]
                                : orders_.emplace_back(Order{.communicator = &communicator});
}

Departure& Departures::add(std::unique_ptr<Departure> departure, CommunicatorBase* collectives) {
  Departure& own = *departure;
  size_t lined_up = 0;
  try {
    all_.push_back(nullptr);
    for (StreamPlace& place : own.places_) {
      line_of(*place.stream).waiting.push_back({&own, &place});
      ++lined_up;
    }
    if (collectives != nullptr) order_in(*collectives).departures.push_back(&own);
  } catch (...) {
    for (size_t i = 0; i < lined_up; ++i) line_of(*own.places_[i].stream).waiting.pop_back();
    std::erase_if(lines_, [](const Line& line) { return line.waiting.empty(); });
    std::erase_if(orders_, [](const Order& order) { return order.departures.empty(); });
    std::erase(all_, nullptr);
    own.close();
    throw;
  }
  own.collectives_ = collectives;
  own.self_ = std::prev(all_.end());
  *own.self_ = std::move(departure);
  return own;
}

int Departures::progress() {
  int moved = 0;
  // A departure starts operations, which may add lines at the end.
  for (auto line = lines_.begin(); line != lines_.end();) {
    moved += advance(*line);
    line = line->waiting.empty() ? lines_.erase(line) : std::next(line);
  }
  return moved;
}

// Lets depart what the stream has come to.
int Departures::advance(Line& line) {
  const Device& device = line.stream->device();
  int moved = 0;
  while (!line.waiting.empty()) {
    const auto [departure, place] = line.waiting.front();
    const hetcomm_status_t status = device.table->event_query(device.instance, place->event);
    if (status == HETCOMM_PENDING) break;
    line.waiting.pop_front();
    line.ends_sleep = false;
    place->forget_event();
    ++moved;
    if (status != HETCOMM_OK) fail(*departure, device, status);
    --departure->places_left_;
    depart_if_ready(departure);
  }
  return moved;
}

// Ends its operations: what the stream holds before them has failed.
void Departures::fail(Departure& departure, const Device& device, hetcomm_status_t status) {
  const auto code = static_cast<Code>(status);
  const std::string why = text_or_none([&] {
    return fmt::format("{}: what the stream held before it has failed: {}", device.table->kind,
                       code_text(code));
  });
  for (Operation*& entry : departure.operations_) {
    Operation* const operation = entry;
    if (operation != nullptr) ender_.end(*operation, code, why);
  }
}

void Departures::depart_if_ready(Departure* departure) {
  while (departure != nullptr && departure->places_left_ == 0) {
    CommunicatorBase* const collectives = departure->collectives_;
    if (collectives != nullptr) {
      std::deque<Departure*>& order = orders_[order_of(*collectives)].departures;
      if (order.front() != departure) return;
    }
    depart(*departure);
    all_.erase(departure->self_);
    if (collectives == nullptr) return;
    const size_t index = order_of(*collectives);
    std::deque<Departure*>& order = orders_[index].departures;
    order.pop_front();
    departure = order.empty() ? nullptr : order.front();
    if (departure == nullptr) orders_.erase(orders_.begin() + static_cast<ptrdiff_t>(index));
  }
}

void Departures::depart(Departure& departure) {
  for (Operation* const operation : departure.operations_) {
    if (operation == nullptr) continue;
    operation->order.departure = nullptr;
    operation->stage = OperationStage::kSubmitted;
    operation->communicator->depart(*operation);
  }
}

bool Departures::prepare_sleep() {
  bool all = true;
  for (Line& line : lines_) {
    const StreamPlace& place = *line.waiting.front().place;
    all = all && devices_.ends_sleep(line.stream->device(), place.event, &line.ends_sleep);
  }
  return all;
}

bool Departures::may_sleep_on() const {
  return std::all_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return line.ends_sleep; });
}

}  // namespace hetcomm
