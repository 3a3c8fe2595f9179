#include "transports/rdma/transport.h"

#include <algorithm>
#include <new>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/net/variables.h"
#include "src/system/clock.h"

namespace hetcomm::rdma {
namespace {

// Timers run for seconds, so checking them in every progress() would be wasteful.
constexpr uint64_t kTimerIntervalNs = 10'000'000;
// The number of probes of idle connections within the detection time.
constexpr uint64_t kProbes = 4;
constexpr int kMaxRounds = 4;
// Used receives are reposted in groups of at least this size. When nothing arrives, all are
// reposted, so no message waits for a full group.
constexpr size_t kPostTogether = 8;
// Unsignalled work of otherwise idle connections is checked once in this many passes. A check costs
// as much as a message, and should not delay the answer to a message.
constexpr uint64_t kTailPasses = 1024;

}  // namespace

// --- set-up ----------------------------------------------------------------------------------

RdmaTransport::RdmaTransport(const TransportEnvironment& environment) : port_(environment, *this) {}

RdmaTransport::~RdmaTransport() { stop_watching(); }

Result<std::unique_ptr<RdmaTransport>> RdmaTransport::create(
    const Verbs& verbs, const Cm* cm, const TransportEnvironment& environment) {
  std::unique_ptr<RdmaTransport> transport(new RdmaTransport(environment));
  HETCOMM_RETURN_IF_ERROR(transport->set_up(verbs, cm));
  return transport;
}

Status RdmaTransport::set_up(const Verbs& verbs, const Cm* cm) {
  HETCOMM_RETURN_IF_ERROR(port_.find(verbs));
  port_.log().info("rdma: using {}", port_.nic().describe());
  const bool use_cm = by_cm(port_.environment().config);
  // The connection manager needs the open device.
  if (use_cm) HETCOMM_RETURN_IF_ERROR(port_.open());
  return pending_.open(use_cm, cm);
}

Status RdmaTransport::on_port_opened() {
  // Set before the first add(), so that stop_watching() also undoes a failure. The poller ignores
  // the removal of a watcher that was never added.
  watching_ = true;
  Status status = port_.poller().add(port_.device().channel()->fd, EPOLLIN, completion_watcher_);
  if (status.ok()) {
    status = port_.poller().add(port_.device().context()->async_fd, EPOLLIN, async_watcher_);
  }
  return status;
}

void RdmaTransport::stop_watching() noexcept {
  if (!std::exchange(watching_, false)) return;
  port_.poller().remove(port_.device().channel()->fd, completion_watcher_);
  port_.poller().remove(port_.device().context()->async_fd, async_watcher_);
}

void RdmaTransport::connect(const Destination& destination, ConstByteSpan contact) {
  pending_.connect(destination, contact);
  timers_checked_ns_ = 0;
}

// --- memory ----------------------------------------------------------------------------------

Result<RemoteKey> RdmaTransport::publish(const Region& region) {
  if (!port_.broken().ok()) return port_.broken();
  HETCOMM_RETURN_IF_ERROR(port_.open());
  return published_.add(region);
}

bool RdmaTransport::withdraw(const RemoteKey& key) {
  published_.remove(key);
  return true;
}

Status RdmaTransport::check_device(const hetcomm::Device& device, HangingCopy* hanging) {
  if (!port_.broken().ok()) return port_.broken();
  DeviceVerdict verdict = try_device(port_.verbs(), port_.environment().config, port_.nic().name(),
                                     port_.settings().connection, device);
  *hanging = verdict.hanging;
  if (!verdict.way) {
    return {verdict.may_change ? Code::kOutOfResources : Code::kUnsupported,
            std::move(verdict.text)};
  }
  device_ways_.emplace_back(device.instance, *verdict.way);
  return {Code::kOk, std::move(verdict.text)};
}

Status RdmaTransport::attach(const DeviceRange& range) {
  if (!port_.broken().ok()) return port_.broken();
  const auto at = std::find_if(device_ways_.begin(), device_ways_.end(), [&](const auto& known) {
    return known.first == range.device.instance;
  });
  if (at == device_ways_.end()) return Code::kUnsupported;
  HETCOMM_RETURN_IF_ERROR(port_.open());
  return port_.memory_regions().attach(range, at->second);
}

// --- progress --------------------------------------------------------------------------------

int RdmaTransport::progress() {
  int done = poll();
  done += endpoints_.progress();
  if (++passes_ % kTailPasses == 0) endpoints_.look_at_tails();
  if (port_.environment().now_ns >= timers_checked_ns_) done += run_timers();
  return done;
}

int RdmaTransport::poll() {
  if (!port_.is_open()) return 0;
  CompletionInbox& inbox = port_.completions();
  int done = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (inbox.empty()) {
      inbox.clear();
      if (port_.fetch() == 0) break;
    }
    const size_t count = inbox.size();
    while (!inbox.empty()) {
      handle(inbox.pop());
      ++done;
    }
    if (port_.receives().unposted() >= kPostTogether) port_.post_receives();
    if (count < CompletionInbox::kBatch) break;
  }
  if (done == 0) port_.post_receives();
  return done;
}

void RdmaTransport::handle(const ibv_wc& completion) {
  if (CompletionInbox::is_taken(completion)) return;
  if ((completion.wr_id & kReceiveBit) != 0) {
    handle_receive(completion);
  } else {
    handle_send(completion);
  }
}

std::string RdmaTransport::failure_text(const char* what, const ibv_wc& completion) const {
  return text_or_none([&] {
    return fmt::format("{}: {} (vendor error {:#x})", what,
                       port_.verbs().wc_status_str(completion.status), completion.vendor_err);
  });
}

void RdmaTransport::handle_receive(const ibv_wc& completion) {
  ReceivePool& receives = port_.receives();
  const uint64_t index = completion.wr_id & ~kReceiveBit;
  if (!receives.valid(index)) return;
  const auto slot = static_cast<uint32_t>(index);
  RdmaEndpoint* endpoint = endpoints_.find(completion.qp_num);
  if (endpoint == nullptr || endpoint->pair() == nullptr) {
    if (completion.status == IBV_WC_SUCCESS && pending_.owns(completion.qp_num)) {
      port_.completions().put_aside(completion);
    } else {
      receives.recycle(slot);
    }
    return;
  }
  if (completion.status == IBV_WC_SUCCESS) {
    endpoint->on_received(completion, receives.slot(slot));
  } else if (completion.status != IBV_WC_WR_FLUSH_ERR) {
    endpoint->break_off(failure_text("receiving failed", completion));
  } else {
    endpoint->break_off("the queue pair is in the error state");
  }
  receives.recycle(slot);
}

void RdmaTransport::handle_send(const ibv_wc& completion) {
  RdmaEndpoint* endpoint = endpoints_.find(completion.qp_num);
  if (endpoint == nullptr || endpoint->pair() == nullptr) return;
  if (completion.status == IBV_WC_SUCCESS) {
    endpoint->on_sent(completion.wr_id);
    return;
  }
  // All earlier requests have completed. The later ones are flushed.
  if (completion.wr_id > 0)
    endpoint->pair()->retire(completion.wr_id - 1, [](const SendRecord&) {});
  endpoint->break_off(failure_text("sending failed", completion),
                      completion.status == IBV_WC_RETRY_EXC_ERR);
}

int RdmaTransport::run_timers() {
  const uint64_t now = port_.environment().now_ns;
  timers_checked_ns_ = now + kTimerIntervalNs;
  const int done = pending_.run_timers(now);
  if (endpoints_.has_suspects()) endpoints_.check_suspects(now);
  // If this side only waits on a connection, it must probe the peer to detect a broken path.
  if (now >= next_probe_ns_) {
    const uint64_t detection_ns = port_.environment().config.number(variable::kDetectionTime);
    next_probe_ns_ = deadline_after(now, detection_ns / kProbes);
    endpoints_.probe_idle();
  }
  return done;
}

void RdmaTransport::on_port_broken(std::string_view reason) noexcept {
  endpoints_.break_off_all(reason);
}

// --- sleep and events ------------------------------------------------------------------------

bool RdmaTransport::prepare_sleep(Sleep) {
  timers_checked_ns_ = 0;
  if (!port_.is_open()) return true;
  port_.post_receives();
  const bool handled = port_.completions().empty();
  if (!endpoints_.prepare_sleep() || !handled || !port_.arm()) return false;
  // A completion that arrived before arm() causes no event.
  return port_.fetch() == 0;
}

bool RdmaTransport::may_sleep_on() const {
  return port_.completions().empty() && !endpoints_.has_urgent_work();
}

uint64_t RdmaTransport::next_timer_ns() const {
  uint64_t next =
      endpoints_.has_suspects() ? port_.environment().now_ns + kTimerIntervalNs : kForever;
  if (!endpoints_.empty()) next = std::min(next, next_probe_ns_);
  return std::min({next, pending_.next_timer_ns(), endpoints_.next_deadline_ns()});
}

void RdmaTransport::EventWatcher::on_events(uint32_t /*events*/) {
  if (kind_ == Events::kCompletions) {
    transport_.port_.take_completion_events();
  } else {
    transport_.on_async_events();
  }
}

void RdmaTransport::on_async_events() {
  ibv_async_event event{};
  while (port_.verbs().get_async_event(port_.device().context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    uint32_t number = 0;
    switch (type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_PATH_MIG_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        number = event.element.qp->qp_num;
        break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_SM_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER:
        number = static_cast<uint32_t>(event.element.port_num);
        break;
      default:
        break;
    }
    // A queue pair cannot be destroyed while one of its events is unacknowledged.
    port_.verbs().ack_async_event(&event);
    on_async_event(type, number);
  }
}

void RdmaTransport::on_async_event(ibv_event_type type, uint32_t number) {
  const char* name = port_.verbs().event_type_str(type);
  port_.log().info("rdma: {}: event: {}", port_.nic().name(), name);
  const bool my_port = number == port_.nic().port;
  const std::string reported =
      text_or_none([&] { return fmt::format("the device reports: {}", name); });
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      if (RdmaEndpoint* endpoint = endpoints_.find(number); endpoint != nullptr) {
        endpoint->break_off(reported);
      }
      break;
    case IBV_EVENT_PORT_ERR:
      if (my_port) endpoints_.break_off_all("the port went down");
      break;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      if (my_port) check_addresses();
      break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_WQ_FATAL:
      port_.break_down(reported);
      break;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      // Without receives the peers would wait forever.
      if (!port_.receives().replace_lost() &&
          port_.receives().has_lost(static_cast<uint32_t>(pending_.queue_pairs()) *
                                    port_.settings().credits)) {
        port_.break_down("too many receives were lost with broken connections");
      }
      break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      break;
  }
}

// Breaks connections whose local address no longer exists. New connections can use the current
// addresses.
void RdmaTransport::check_addresses() {
  try {
    port_.device().refresh_addresses(port_.environment().config);
  } catch (const std::bad_alloc&) {
    // The port then has only the addresses that were read before memory ran out.
  }
  endpoints_.check_addresses();
}

}  // namespace hetcomm::rdma
