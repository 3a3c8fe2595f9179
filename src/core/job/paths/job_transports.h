// Holds the transports of one rank in a job. They are made once, in the order of their factories,
// and driven until the job ends. All calls are under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/paths/job_environment.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "topology/machine/pairing.h"
#include "transports/transport.h"

namespace hetcomm {

struct JobTransport;

// Receives events of connections over the transports of a job.
class ConnectionHandler {
 public:
  // These two functions correspond to TransportHandler's functions of the same names.
  virtual void on_connected(JobTransport& transport, const Destination& destination,
                            Result<std::unique_ptr<Endpoint>> endpoint) HETCOMM_UNDER_BATON = 0;
  virtual void on_accepted(JobTransport& transport, int peer,
                           std::unique_ptr<Endpoint> endpoint) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ConnectionHandler() = default;
};

struct JobTransport final : public TransportHandler {
  JobTransport(ConnectionHandler& connections, size_t number)
      : handler(connections), index(number) {}
  void on_connected(const Destination& destination,
                    Result<std::unique_ptr<Endpoint>> endpoint) override HETCOMM_UNDER_BATON {
    handler.on_connected(*this, destination, std::move(endpoint));
  }
  void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) override HETCOMM_UNDER_BATON {
    handler.on_accepted(*this, peer, std::move(endpoint));
  }
  const Capabilities& capabilities() const HETCOMM_UNDER_BATON { return transport->capabilities(); }

  ConnectionHandler& handler;
  const size_t index;     // index among the transports of the job
  std::string_view kind;  // name of its factory, which may make several transports
  std::string name;
  topology::Port port;            // rate, subnets and fabric of its network interface
  std::string nic;                // name of its network interface; empty: not bound to one
  std::string model_nic;          // name of its interface in a link model
  uint64_t devices = UINT64_MAX;  // devices near its interface (see RankNic)
  uint64_t far_devices = 0;       // devices beyond its root complex (see RankNic)
  bool has_route = false;         // its interface is known to lead to other ranks
  std::unique_ptr<Transport> transport;
  TransportAbilities abilities;
};

// This host's addresses that a job uses.
struct JobInterfaces {
  Address route;  // the address that leads to the other ranks; unset if unknown
  ChosenInterfaces chosen = std::vector<InterfaceAddress>();
};

// A network interface that a transport cannot use.
struct NicRefusal {
  std::string nic;
  std::string why;
};

class JobTransports {
 public:
  // |credentials| may be completed later, before start().
  JobTransports(const JobEnvironment& environment, int rank, int size,
                const Credentials& credentials, ConnectionHandler& handler)
      : environment_(environment),
        rank_(rank),
        size_(size),
        credentials_(credentials),
        handler_(handler) {}
  JobTransports(const JobTransports&) = delete;
  JobTransports& operator=(const JobTransports&) = delete;

  // Makes the transports that |wanted| allows; an empty text stands for HETCOMM_TRANSPORTS. Fails
  // if a transport that the user has named cannot be used. |interfaces| must outlive the
  // transports.
  Status make(std::string_view wanted, const JobInterfaces& interfaces) HETCOMM_UNDER_BATON;
  // Starts the transports. Call this once all ranks have introduced themselves, so that the
  // transports know which connections to accept.
  Status start() HETCOMM_UNDER_BATON;
  // Destroys all transports. No upcall follows.
  void close() HETCOMM_UNDER_BATON;

  size_t size() const HETCOMM_UNDER_BATON { return owned_.size(); }
  JobTransport& at(size_t index) const HETCOMM_UNDER_BATON { return *owned_[index]; }
  const std::vector<std::unique_ptr<JobTransport>>& all() const HETCOMM_UNDER_BATON {
    return owned_;
  }
  // Returns a line for each factory that is not used, with the reason.
  const std::vector<std::string>& unused() const HETCOMM_UNDER_BATON { return unused_; }
  // Returns the interfaces that a transport cannot use, with the reasons.
  const std::vector<NicRefusal>& refusals() const HETCOMM_UNDER_BATON { return refusals_; }
  // Returns whether this rank has an intra-host transport.
  bool shares_memory() const HETCOMM_UNDER_BATON;
  // Returns the size of the largest message that fits every transport that may lose messages.
  uint32_t lossy_payload_bytes() const HETCOMM_UNDER_BATON { return lossy_payload_bytes_; }
  // Records that |transport| has a connection. Every pass polls it from now on. Transports without
  // connections are polled only occasionally.
  void note_connected(Transport& transport) HETCOMM_UNDER_BATON;

  int progress() HETCOMM_UNDER_BATON {
    int moved = 0;
    if ((++passes_ & 15) == 0) {
      for (const auto& each : owned_) moved += each->transport->progress();
    } else {
      for (Transport* transport : connected_) moved += transport->progress();
    }
    return moved;
  }
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;
  bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;
  void finish_sleep() HETCOMM_UNDER_BATON;

 private:
  Status make_all_of(const TransportFactory& factory,
                     const JobInterfaces& interfaces) HETCOMM_UNDER_BATON;
  struct Bindings {
    std::vector<const RankNic*> nics;  // none: one transport chooses its own interface
    // An additional last-resort transport chooses its own interface.
    bool also_unbound = false;
  };
  Bindings bindings_for(const TransportFactory& factory,
                        const JobInterfaces& interfaces) HETCOMM_UNDER_BATON;
  void note_refusal(const RankNic& nic, const Status& why) HETCOMM_UNDER_BATON;
  void report_unused_rate() const HETCOMM_UNDER_BATON;
  void add_route(const TransportFactory& factory, const ChosenInterfaces& interfaces,
                 Bindings& bindings) const HETCOMM_UNDER_BATON;
  void describe_only_nic(JobTransport& made, const TransportFactory& factory,
                         const ChosenInterfaces& interfaces) const HETCOMM_UNDER_BATON;
  Status make_one(const TransportFactory& factory, size_t instance, const RankNic* nic,
                  const ChosenInterfaces& interfaces) HETCOMM_UNDER_BATON;

  const JobEnvironment& environment_;
  const int rank_;
  const int size_;
  const Credentials& credentials_;
  ConnectionHandler& handler_;
  std::string route_interface_;  // leads to the other ranks; empty: unknown
  uint32_t lossy_payload_bytes_ = UINT32_MAX;
  uint64_t passes_ = 0;
  std::vector<Transport*> connected_;
  std::vector<std::string> unused_;
  std::vector<NicRefusal> refusals_;
  std::vector<std::unique_ptr<JobTransport>> owned_;
};

}  // namespace hetcomm
