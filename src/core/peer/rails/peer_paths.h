// Declares the interfaces through which a pair requests connections to its peer from the job, gets
// advice on them, and looks up the transports at their ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail_ends.h"

namespace hetcomm {

// Makes connections.
class PairConnector {
 public:
  // Tries the transports that reach |rank|, in the order of their estimates. Pair::adopt() or
  // Pair::connect_failed() is called with the result.
  virtual void connect(int rank) HETCOMM_UNDER_BATON = 0;
  // Makes an additional connection to |rank|.
  virtual void connect_over(int rank, const RailEnds& ends) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PairConnector() = default;
};

// Estimates which connections are worth having.
class RailAdvisor {
 public:
  // Returns connections to |rank| that would be better than the one between |used|, or would share
  // its load for data of one of |needs|.
  virtual std::vector<RailEnds> useful_beside(
      int rank, const RailEnds& used, std::span<const RailMasks> needs) HETCOMM_UNDER_BATON = 0;
  // Returns the connection to |rank| that would carry the messages if no connection of the same
  // kind as |used| had failed.
  virtual RailEnds preferred(int rank, const RailEnds& used) HETCOMM_UNDER_BATON = 0;
  // Returns whether some connection to |rank| between transports of |need| is likely to work.
  virtual bool serves(int rank, const RailMasks& need) HETCOMM_UNDER_BATON = 0;
  // Returns whether the network interfaces at |ends|, of this rank and of |rank|, are known to be
  // in different subnets or fabrics.
  virtual bool are_apart(int rank, const RailEnds& ends) const HETCOMM_UNDER_BATON = 0;
  // Returns the highest rate, in bytes per second, at which this rank's transport |own| is expected
  // to carry data to |rank|.
  virtual uint64_t expected_rate(int rank, size_t own) const HETCOMM_UNDER_BATON = 0;

 protected:
  ~RailAdvisor() = default;
};

// Provides information about the transports of this rank and those that peers offer.
class TransportDirectory {
 public:
  // Returns whether data for |rank| stays on this host, regardless of the transport.
  virtual bool is_beside(int rank) const HETCOMM_UNDER_BATON = 0;
  // Returns the transports of this rank and of |rank| that are of |kind|.
  virtual RailMasks all_of_kind(int rank, std::string_view kind) const HETCOMM_UNDER_BATON = 0;
  // Returns whether both ranks offer a common transport, which may still not reach the peer.
  virtual bool has_common_transport(int rank) const HETCOMM_UNDER_BATON = 0;
  // Returns the largest payload, in bytes, that every transport that may have to resend a message
  // to |rank| can carry.
  virtual uint32_t kept_payload_bytes(int rank) HETCOMM_UNDER_BATON = 0;
  // Returns whether transport |index| of |rank| is of |kind|. |index| can have any value.
  virtual bool is_offered(int rank, size_t index,
                          std::string_view kind) const HETCOMM_UNDER_BATON = 0;
  virtual std::string_view transport_kind(size_t index) const HETCOMM_UNDER_BATON = 0;
  virtual std::string_view transport_name(size_t index) const HETCOMM_UNDER_BATON = 0;
  // Returns a readable name for a connection to |rank|: the transports at its ends.
  virtual std::string name_of(int rank, const RailEnds& ends) const HETCOMM_UNDER_BATON = 0;

 protected:
  ~TransportDirectory() = default;
};

// The three interfaces of a job. They outlive its pairs.
struct PeerPaths {
  PairConnector& connector;
  RailAdvisor& advisor;
  TransportDirectory& directory;
};

}  // namespace hetcomm
