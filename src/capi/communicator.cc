// Implements the C ABI of bootstraps and communicators.
#include <algorithm>
#include <string>
#include <vector>

#include "src/capi/guard.h"
#include "src/capi/link_model.h"
#include "src/capi/output.h"
#include "src/core/communicator/collective_calls.h"
#include "src/core/communicator/split.h"
#include "src/net/variables.h"

namespace {

using hetcomm::Bootstrap;
using hetcomm::Code;
using hetcomm::Communicator;
using hetcomm::JobOptions;
using hetcomm::Result;
using hetcomm::Status;
namespace variable = hetcomm::variable;
namespace capi = hetcomm::capi;
namespace topology = hetcomm::topology;

Status no_link_model(hetcomm_communicator_t* communicator) {
  return {Code::kNotFound, std::string(communicator->impl->links().model_status().text())};
}

constexpr uint64_t kFlushTimeoutNs = 5'000'000'000;

Status wrap_bootstrap(hetcomm_context_t* context, Result<std::unique_ptr<Bootstrap>> made,
                      hetcomm_bootstrap_t** out) {
  if (!made.ok()) return made.status();
  *out = new hetcomm_bootstrap{.impl = std::move(made.value()), .context = context->impl.get()};
  context->impl->add_object();
  return {};
}

Status check(const hetcomm_communicator_t* communicator) {
  HETCOMM_REQUIRE_HANDLE(communicator);
  return capi::check_alive(communicator->impl->context());
}

Status check_rank(const hetcomm_communicator_t* communicator, int32_t rank) {
  if (rank >= 0 && rank < communicator->impl->size()) return {};
  return Status(Code::kOutOfRange,
                fmt::format("there is no rank {}: the communicator has ranks 0 to {}", rank,
                            communicator->impl->size() - 1));
}

// A device of a rank. Both numbers come from the caller and are not validated yet.
struct DeviceOfRank {
  int32_t rank;
  int32_t device;
};

struct LinkOutputs {
  size_t capacity;
  hetcomm_link_resource_t* resources;
  size_t* count;
  hetcomm_link_t* link;
};

Status check(const LinkOutputs& outputs) {
  if (outputs.count == nullptr) return Status(Code::kInvalidArgument, "out_count is NULL");
  if (outputs.link == nullptr) return Status(Code::kInvalidArgument, "out_link is NULL");
  HETCOMM_RETURN_IF_ERROR(capi::check_output(*outputs.link));
  if (outputs.capacity == 0) return {};
  if (outputs.resources == nullptr) return Status(Code::kInvalidArgument, "out_resources is NULL");
  return capi::check_output(*outputs.resources);
}

Status check_device_of(const hetcomm_communicator_t* communicator, const DeviceOfRank& of) {
  HETCOMM_RETURN_IF_ERROR(check_rank(communicator, of.rank));
  const size_t count = communicator->impl->links().device_count(of.rank);
  if (of.device >= 0 && static_cast<size_t>(of.device) < count) return {};
  return Status(Code::kOutOfRange, fmt::format("rank {} has no device {}: it has devices 0 to {}",
                                               of.rank, of.device, count - 1));
}

// Writes the route between two devices, according to the link model, to |outputs|.
Status tell_link(hetcomm_communicator_t* communicator, const DeviceOfRank& from,
                 const DeviceOfRank& to, const LinkOutputs& outputs) {
  HETCOMM_RETURN_IF_ERROR(check(communicator));
  HETCOMM_RETURN_IF_ERROR(check_device_of(communicator, from));
  HETCOMM_RETURN_IF_ERROR(check_device_of(communicator, to));
  HETCOMM_RETURN_IF_ERROR(check(outputs));
  const topology::LinkModel* const model = communicator->impl->links().model();
  if (model == nullptr) return no_link_model(communicator);
  const topology::Route route = communicator->impl->links().route(
      {from.rank, static_cast<size_t>(from.device)}, {to.rank, static_cast<size_t>(to.device)});
  for (size_t i = 0; i < std::min(outputs.capacity, route.resources.size()); ++i) {
    const topology::LinkResource& crossed =
        model->resources[static_cast<size_t>(route.resources[i])];
    hetcomm_link_resource_t entry{};
    crossed.name.copy(entry.name, sizeof(entry.name) - 1);
    entry.kind = static_cast<int32_t>(crossed.kind);
    entry.bytes_per_s = crossed.bytes_per_s;
    const size_t size = outputs.resources->struct_size;
    capi::write_output(entry, size, reinterpret_cast<std::byte*>(outputs.resources) + i * size);
  }
  const uint64_t rate = topology::rate_alone(*model, route);
  *outputs.count = route.resources.size();
  return capi::write_output(
      hetcomm_link_t{.struct_size = 0,
                     .latency_ns = route.latency_ns,
                     .bytes_per_s = rate == topology::kMaxBytesPerS ? 0 : rate},
      outputs.link);
}

// Returns the deadline of a call that starts now. Also passes the time limit to |bootstrap|, which
// includes it in error texts.
uint64_t deadline_of(const hetcomm::Context& context, Bootstrap& bootstrap,
                     const hetcomm_communicator_options_t& options) {
  const uint64_t timeout = options.timeout_ns != 0
                               ? options.timeout_ns
                               : context.config().number(variable::kBootstrapTimeout);
  bootstrap.set_time_limit(timeout);
  return hetcomm::deadline_after(hetcomm::now_ns(), timeout);
}

Status make(hetcomm_context_t* context, Bootstrap& bootstrap,
            const hetcomm_communicator_options_t& options, uint32_t epoch, uint64_t deadline_ns,
            hetcomm_communicator_t** out) {
  JobOptions wanted;
  wanted.name = options.name != nullptr ? options.name : "world";
  wanted.epoch = epoch;
  wanted.transports = options.transports != nullptr ? options.transports : "";
  wanted.share = options.share != 0;
  wanted.deadline_ns = deadline_ns;
  auto made = Communicator::create(*context->impl, bootstrap, wanted);
  if (!made.ok()) return made.status();
  *out = new hetcomm_communicator{.impl = std::move(made.value()), .context = context};
  context->impl->add_object();
  return {};
}

// Checks that |bootstrap| can be shrunk, and that its rank and size are those of |old|, whose lost
// ranks the rebuild excludes.
Status check_shrink(const Communicator& old, Bootstrap& bootstrap) {
  if (bootstrap.survivor_finder() == nullptr) {
    return Status(
        Code::kUnsupported,
        "a bootstrap from callbacks cannot be shrunk: make one of the ranks that are left "
        "and rebuild with it");
  }
  if (old.size() == bootstrap.size() && old.rank() == bootstrap.rank()) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("shrink: the communicator has rank {} of {}, the bootstrap {} of {}",
                            old.rank(), old.size(), bootstrap.rank(), bootstrap.size()));
}

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_bootstrap_create_from_environment(
    hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_bootstrap);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    return wrap_bootstrap(
        context, hetcomm::bootstrap_from_environment(context->impl->config(), context->impl->log()),
        out_bootstrap);
  });
}

hetcomm_status_t hetcomm_bootstrap_create_from_callbacks(
    hetcomm_context_t* context, const hetcomm_bootstrap_options_t* options,
    hetcomm_bootstrap_t** out_bootstrap) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(options);
    HETCOMM_REQUIRE(out_bootstrap);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    hetcomm_bootstrap_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    if (known.secret == nullptr && known.secret_size > 0) return capi::null_argument("secret");
    return wrap_bootstrap(
        context,
        hetcomm::bootstrap_from_callbacks(context->impl->config(), context->impl->log(), known),
        out_bootstrap);
  });
}

hetcomm_status_t hetcomm_bootstrap_rank(const hetcomm_bootstrap_t* bootstrap, int32_t* out_rank,
                                        int32_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(bootstrap);
    HETCOMM_REQUIRE(out_rank);
    HETCOMM_REQUIRE(out_size);
    *out_rank = bootstrap->impl->rank();
    *out_size = bootstrap->impl->size();
    return {};
  });
}

void hetcomm_bootstrap_destroy(hetcomm_bootstrap_t* bootstrap) noexcept {
  if (bootstrap == nullptr || !capi::is_good(bootstrap) || !bootstrap->context->alive()) return;
  hetcomm::Context* context = bootstrap->context;
  capi::destroy(bootstrap);
  context->drop_object();
}

hetcomm_status_t hetcomm_communicator_create(hetcomm_context_t* context,
                                             hetcomm_bootstrap_t* bootstrap,
                                             const hetcomm_communicator_options_t* options,
                                             hetcomm_communicator_t** out_communicator) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE_HANDLE(bootstrap);
    HETCOMM_REQUIRE(out_communicator);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    hetcomm_communicator_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    if (known.shrink != 0)
      return Status(Code::kInvalidArgument,
                    "options: shrink is allowed in hetcomm_communicator_rebuild only");
    return make(context, *bootstrap->impl, known, known.epoch,
                deadline_of(*context->impl, *bootstrap->impl, known), out_communicator);
  });
}

hetcomm_status_t hetcomm_communicator_destroy(hetcomm_communicator_t* communicator) noexcept {
  return capi::guard([&]() -> Status {
    if (communicator == nullptr) return {};
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_RETURN_IF_ERROR(communicator->impl->check_idle());
    communicator->impl->flush(kFlushTimeoutNs);
    hetcomm::Context& context = communicator->impl->context();
    capi::destroy(communicator);
    context.drop_object();
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_rank(const hetcomm_communicator_t* communicator,
                                           int32_t* out_rank, int32_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_REQUIRE(out_rank);
    HETCOMM_REQUIRE(out_size);
    *out_rank = communicator->impl->rank();
    *out_size = communicator->impl->size();
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_barrier(hetcomm_communicator_t* communicator,
                                              uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    return hetcomm::barrier(*communicator->impl, timeout_ns);
  });
}

hetcomm_status_t hetcomm_communicator_split(hetcomm_communicator_t* communicator, int32_t color,
                                            int32_t key,
                                            hetcomm_communicator_t** out_communicator) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    Status refused;
    if (out_communicator == nullptr) refused = capi::null_argument("out_communicator");
    if (color < 0 && color != HETCOMM_NO_COLOR) {
      refused = Status(Code::kInvalidArgument, "color has to be 0 or more, or HETCOMM_NO_COLOR");
    }
    // The handle is allocated before split(), because split() tells the other ranks whether this
    // rank can participate.
    std::unique_ptr<hetcomm_communicator> handle(new (std::nothrow) hetcomm_communicator{});
    if (handle == nullptr && refused.ok()) refused = Code::kOutOfMemory;
    auto made = hetcomm::split(*communicator->impl, color, key, refused);
    if (!made.ok()) return made.status();
    if (made.value() == nullptr) {
      *out_communicator = nullptr;
      return {};
    }
    hetcomm::Context& context = communicator->impl->context();
    handle->impl = std::move(made.value());
    handle->context = communicator->context;
    *out_communicator = handle.release();
    context.add_object();
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_abort(hetcomm_communicator_t* communicator,
                                            const char* reason) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    communicator->impl->abort(reason != nullptr ? reason : "no reason given");
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_rebuild(hetcomm_communicator_t* communicator,
                                              hetcomm_bootstrap_t* bootstrap,
                                              const hetcomm_communicator_options_t* options,
                                              hetcomm_communicator_t** out_communicator) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_REQUIRE_HANDLE(bootstrap);
    HETCOMM_REQUIRE(out_communicator);
    hetcomm_communicator_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    Communicator& old = *communicator->impl;
    Communicator& root = old.root();
    if (known.shrink != 0) HETCOMM_RETURN_IF_ERROR(check_shrink(root, *bootstrap->impl));
    old.abort("rebuilt");
    const JobOptions before = old.options();
    if (known.name == nullptr) known.name = before.name.c_str();
    if (known.transports == nullptr) known.transports = before.transports.c_str();
    const uint32_t epoch = std::max(known.epoch, before.epoch) + 1;
    const uint64_t deadline = deadline_of(old.context(), *bootstrap->impl, known);
    if (known.shrink == 0) {
      return make(communicator->context, *bootstrap->impl, known, epoch, deadline,
                  out_communicator);
    }
    const std::string scope = fmt::format("{}/epoch {}/survivors", known.name, epoch);
    Result<std::unique_ptr<Bootstrap>> left = bootstrap->impl->survivor_finder()->survivors(
        scope, [&root] { return root.lost_ranks(); }, deadline);
    if (!left.ok()) return left.status();
    HETCOMM_RETURN_IF_ERROR(
        make(communicator->context, *left.value(), known, epoch, deadline, out_communicator));
    bootstrap->impl = std::move(left).value();
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_context(const hetcomm_communicator_t* communicator,
                                              hetcomm_context_t** out_context) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_REQUIRE(out_context);
    *out_context = communicator->context;
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_epoch(const hetcomm_communicator_t* communicator,
                                            uint32_t* out_epoch) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_REQUIRE(out_epoch);
    *out_epoch = communicator->impl->options().epoch;
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_status(hetcomm_communicator_t* communicator) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    return communicator->impl->status();
  });
}

hetcomm_status_t hetcomm_communicator_peer_status(hetcomm_communicator_t* communicator,
                                                  int32_t rank) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_RETURN_IF_ERROR(check_rank(communicator, rank));
    return communicator->impl->peer_status(rank);
  });
}

hetcomm_status_t hetcomm_communicator_counters(hetcomm_communicator_t* communicator, int32_t rank,
                                               size_t capacity, hetcomm_counters_t* out_counters,
                                               size_t* out_count) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_RETURN_IF_ERROR(check_rank(communicator, rank));
    HETCOMM_REQUIRE(out_count);
    std::vector<hetcomm_counters_t> all(communicator->impl->counters(rank, 0, nullptr));
    if (capacity > 0) {
      HETCOMM_REQUIRE(out_counters);
      HETCOMM_RETURN_IF_ERROR(capi::check_output(*out_counters));
      const size_t size = out_counters->struct_size;
      all.resize(std::min(all.size(), communicator->impl->counters(rank, all.size(), all.data())));
      auto* out = reinterpret_cast<std::byte*>(out_counters);
      for (size_t i = 0; i < std::min(capacity, all.size()); ++i) {
        capi::write_output(all[i], size, out + i * size);
      }
    }
    *out_count = all.size();
    return {};
  });
}

hetcomm_status_t hetcomm_communicator_explain(hetcomm_communicator_t* communicator, int32_t rank,
                                              size_t capacity, char* out_text,
                                              size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_RETURN_IF_ERROR(check_rank(communicator, rank));
    return capi::write_text(communicator->impl->explain(rank), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_communicator_explain_pairings(hetcomm_communicator_t* communicator,
                                                       int32_t rank, int32_t device, int32_t format,
                                                       size_t capacity, char* out_text,
                                                       size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    HETCOMM_RETURN_IF_ERROR(check_rank(communicator, rank));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(communicator->impl->context(), device));
    if (format != HETCOMM_TOPOLOGY_TEXT && format != HETCOMM_TOPOLOGY_JSON) {
      return Status(Code::kInvalidArgument,
                    "format is neither HETCOMM_TOPOLOGY_TEXT nor HETCOMM_TOPOLOGY_JSON");
    }
    const hetcomm::Result<hetcomm::PairingReport> report =
        communicator->impl->links().pairing_report(rank, static_cast<size_t>(device));
    if (!report.ok()) return report.status();
    return capi::write_text(format == HETCOMM_TOPOLOGY_JSON ? hetcomm::to_json(report.value())
                                                            : hetcomm::to_text(report.value()),
                            capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_communicator_link(hetcomm_communicator_t* communicator, int32_t from,
                                           int32_t to, size_t capacity,
                                           hetcomm_link_resource_t* out_resources,
                                           size_t* out_count, hetcomm_link_t* out_link) noexcept {
  return capi::guard([&] {
    return tell_link(communicator, {from, HETCOMM_DEVICE_HOST}, {to, HETCOMM_DEVICE_HOST},
                     {capacity, out_resources, out_count, out_link});
  });
}

hetcomm_status_t hetcomm_communicator_device_link(hetcomm_communicator_t* communicator,
                                                  int32_t from, int32_t from_device, int32_t to,
                                                  int32_t to_device, size_t capacity,
                                                  hetcomm_link_resource_t* out_resources,
                                                  size_t* out_count,
                                                  hetcomm_link_t* out_link) noexcept {
  return capi::guard([&] {
    return tell_link(communicator, {from, from_device}, {to, to_device},
                     {capacity, out_resources, out_count, out_link});
  });
}

hetcomm_status_t hetcomm_communicator_link_model(hetcomm_communicator_t* communicator,
                                                 int32_t format, size_t capacity, char* out_text,
                                                 size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(communicator));
    const topology::LinkModel* const model = communicator->impl->links().model();
    if (model == nullptr) return no_link_model(communicator);
    const Result<std::string> text = capi::write_link_model(*model, format);
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

}  // extern "C"
