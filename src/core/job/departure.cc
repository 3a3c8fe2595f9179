#include "src/core/job/departure.h"

#include <algorithm>
#include <new>
#include <utility>

namespace hetcomm {

Result<std::unique_ptr<Departure>> Departure::make(std::span<UserStream* const> streams) {
  auto departure = std::make_unique<Departure>();
  departure->places_.reserve(streams.size());
  for (UserStream* const stream : streams) {
    Result<StreamPlace> place = stream->record();
    if (!place.ok()) return place.status();
    departure->places_.push_back(std::move(place).value());
  }
  for (StreamPlace& place : departure->places_) {
    HETCOMM_RETURN_IF_ERROR(place.stream->hold(&place));
  }
  departure->places_left_ = departure->places_.size();
  return departure;
}

void Departure::join(Operation& operation) {
  operations_.push_back(&operation);
  operation.stage = OperationStage::kBehind;
  operation.order.departure = this;
  operation.order.index = operations_.size() - 1;
  ++waiting_;
  if (!operation.options.on_stream) return;
  const auto place = std::find_if(places_.begin(), places_.end(), [&](const StreamPlace& each) {
    return each.stream == operation.order.stream;
  });
  operation.order.hold = place->hold;
  operation.order.hold->add_operation();
}

void Departure::close() {
  for (StreamPlace& place : places_) {
    if (place.hold != nullptr && !place.hold->has_operations()) delete place.hold;
    place.hold = nullptr;
  }
}

}  // namespace hetcomm
