// A departure: operations that start together, once the streams that they name have come to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/user_stream.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class Departure {
 public:
  // Puts a place into each of |streams|, which differ. [any-thread]
  static Result<std::unique_ptr<Departure>> make(std::span<UserStream* const> streams);
  // One that waits for no stream.
  Departure() = default;
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // Makes room for |count| operations. May throw std::bad_alloc.
  void reserve(size_t count) { operations_.reserve(count); }
  // |operation|, which has begun and for which there is room, is going to depart. Its stream is one
  // of those of the departure.
  void join(Operation& operation) HETCOMM_UNDER_BATON;
  // No more operations will join. Streams that none of them names go on.
  void close() HETCOMM_UNDER_BATON;

 private:
  friend class Departures;
  std::vector<StreamPlace> places_;
  size_t places_left_ = 0;                   // not reached yet
  std::vector<Operation*> operations_;       // null: it has ended
  size_t waiting_ = 0;                       // operations that have not
  CommunicatorBase* collectives_ = nullptr;  // some operations are collective ones of it
  std::list<std::unique_ptr<Departure>>::iterator self_{};  // in the list of all
};

}  // namespace hetcomm
