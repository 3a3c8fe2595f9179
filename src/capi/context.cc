// Implements the C ABI of contexts, devices and memory.
#include <unistd.h>

#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "devices/plugin/checked_device.h"
#include "src/base/text.h"
#include "src/bootstrap/launch.h"
#include "src/capi/device_list.h"
#include "src/capi/guard.h"
#include "src/capi/output.h"
#include "src/capi/post.h"
#include "src/capi/variables.h"
#include "src/core/job/paths/transport_choice.h"
#include "src/core/progress/variables.h"
#include "src/net/interface_check.h"
#include "src/system/variables.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"
#include "transports/variables.h"

namespace {

using hetcomm::Code;
using hetcomm::Config;
using hetcomm::ContextParts;
using hetcomm::Device;
using hetcomm::Log;
using hetcomm::LogLevel;
using hetcomm::Result;
using hetcomm::Status;
namespace variable = hetcomm::variable;
namespace capi = hetcomm::capi;

// Returns the transports of this build.
std::vector<std::unique_ptr<hetcomm::TransportFactory>> all_transports() {
  std::vector<std::unique_ptr<hetcomm::TransportFactory>> factories;
  factories.push_back(hetcomm::make_self_factory());
  factories.push_back(hetcomm::make_shm_factory());
  factories.push_back(hetcomm::make_rdma_factory());
  factories.push_back(hetcomm::make_tcp_factory());
  return factories;
}

void claim(hetcomm_context& context, size_t device) {
  context.claims.claim(context.impl->devices().device(device), context.impl->log());
}

Status create_context(const hetcomm_context_options_t& options, hetcomm_context_t** out_context) {
  auto log = std::make_unique<Log>();
  log->set_sink(options.log_function, options.log_user_data);
  Result<Config> config = Config::load(hetcomm::kVariables, environ,
                                       options.settings != nullptr ? options.settings : "", *log,
                                       hetcomm::caller_of_process());
  if (!config.ok()) return config.status();
  LogLevel level = LogLevel::kWarn;
  if (options.log_level != 0) {
    if (options.log_level < HETCOMM_LOG_ERROR || options.log_level > HETCOMM_LOG_TRACE) {
      return Status(Code::kInvalidArgument,
                    "options: log_level has to be one of HETCOMM_LOG_*, or 0");
    }
    level = static_cast<LogLevel>(options.log_level);
  } else {
    level = hetcomm::parse_log_level(config->text(variable::kLog)).value();
  }
  log->set_level(level);
  if (const std::string_view name = config->text(variable::kLogFile); !name.empty()) {
    HETCOMM_RETURN_IF_ERROR(log->set_file(name, hetcomm::launched_rank()));
  }
  auto transports = all_transports();
  if (const auto choice =
          hetcomm::TransportChoice::parse(config->text(variable::kTransports), transports);
      !choice.ok()) {
    return Status(Code::kInvalidArgument, std::string(choice.status().text()))
        .annotate("HETCOMM_TRANSPORTS");
  }
  hetcomm::warn_of_unknown_interfaces(*config, *log);
  hetcomm::warn_of_unknown_rdma_devices(*config, *log);
  if (options.progress < HETCOMM_PROGRESS_DEFAULT || options.progress > HETCOMM_PROGRESS_THREAD) {
    return Status(Code::kInvalidArgument, "options: progress has to be one of HETCOMM_PROGRESS_*");
  }
  const bool thread = options.progress == HETCOMM_PROGRESS_THREAD ||
                      (options.progress == HETCOMM_PROGRESS_DEFAULT &&
                       config->text(variable::kProgress) == "thread");
  capi::DeviceList devices;
  HETCOMM_RETURN_IF_ERROR(devices.make(*config, *log));
  ContextParts parts{std::move(config.value()), std::move(log), std::move(transports),
                     devices.take(), thread};
  Result<std::unique_ptr<hetcomm::Context>> context = hetcomm::Context::create(std::move(parts));
  if (!context.ok()) return context.status();
  auto made = std::make_unique<hetcomm_context>();
  made->impl = std::move(context.value());
  for (size_t i = 1; i < made->impl->devices().size(); ++i) claim(*made, i);
  *out_context = made.release();
  return {};
}

// Checks that |address| does not point to device memory that the CPU cannot access.
Status check_plain(const hetcomm::DeviceSet& devices, const void* address) {
  const Code code = devices.check_plain(reinterpret_cast<uintptr_t>(address));
  if (code == Code::kOk) return {};
  return Status(code, std::string(capi::text_of_plain(code)));
}

// Checks, as far as possible, that the |size| bytes at |address| are memory of device |index|. Sets
// |*allocation| to the beginning of the allocation that contains them, or to |address| if the host
// can access the device's memory.
Status check_wrapped(const hetcomm::DeviceSet& devices, size_t index, const void* address,
                     uint64_t size, const void** allocation) {
  *allocation = address;
  const Device& device = devices.device(index);
  if (device.table->host_accessible) {
    if (size > UINT64_MAX - reinterpret_cast<uintptr_t>(address)) {
      return Status(Code::kOutOfRange, "the range ends past the address space");
    }
    HETCOMM_RETURN_IF_ERROR(check_plain(devices, address));
    size_t owner = 0;
    if (devices.kinds().is_object(address, &owner)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the address is a handle of {}: wrap it on a device of that kind",
                                devices.device(owner).table->kind));
    }
    return {};
  }
  void* base = nullptr;
  uint64_t known = 0;
  const hetcomm_status_t status = device.table->find(device.instance, address, &base, &known);
  if (status == HETCOMM_NOT_FOUND) {
    return Status(Code::kInvalidArgument,
                  std::string("the address is no memory of device ") + device.table->kind);
  }
  if (status != HETCOMM_OK) {
    return Status(static_cast<Code>(status),
                  fmt::format("{}: the device cannot tell whether the address is its memory: {}",
                              device.table->kind, hetcomm::failure_text(device, status)));
  }
  const auto before = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address) -
                                            reinterpret_cast<uintptr_t>(base));
  if (before > known || size > known - before) {
    return Status(Code::kOutOfRange,
                  "the range ends past the allocation's " + std::to_string(known) + " bytes");
  }
  *allocation = base;
  return {};
}

// Lets a device retain the memory of a hetcomm_memory_wrap() call (DeviceTable::retain). The
// destructor releases the memory, unless hand_over() has transferred this duty to a Memory.
class Retained {
 public:
  Retained(const Device& device, void* address) : device_(device), address_(address) {}
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;
  ~Retained() {
    if (held_) device_.table->release(device_.instance, address_);
  }

  Status take(uint64_t size) {
    if (device_.table->retain == nullptr) return {};
    const hetcomm_status_t status = device_.table->retain(device_.instance, address_, size);
    held_ = status == HETCOMM_OK;
    if (held_) return {};
    return Status(static_cast<Code>(status), why(status, size));
  }
  void hand_over() { held_ = false; }

 private:
  // Returns the reason why the device refuses the memory: the rule that the device reports, or
  // otherwise a text for |status|.
  std::string why(hetcomm_status_t status, uint64_t size) const {
    const char* const kind = device_.table->kind;
    std::array<char, 256> rule{};
    if (device_.table->retain_rule != nullptr) {
      device_.table->retain_rule(device_.instance, address_, size, rule.data(), rule.size());
      rule.back() = '\0';
    }
    if (rule.front() != '\0') return fmt::format("{}: {}", kind, hetcomm::printable(rule.data()));
    if (status == HETCOMM_OUT_OF_RANGE) return "the range ends past its allocation";
    if (status == HETCOMM_INVALID_ARGUMENT) {
      return std::string("the address is no memory of device ") + kind;
    }
    return fmt::format("{}: the memory cannot be used: {}", kind,
                       hetcomm::failure_text(device_, status));
  }

  const Device& device_;
  void* const address_;
  bool held_ = false;
};

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_context_create(const hetcomm_context_options_t* options,
                                        hetcomm_context_t** out_context) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_context);
    hetcomm_context_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    return create_context(known, out_context);
  });
}

hetcomm_status_t hetcomm_context_destroy(hetcomm_context_t* context) noexcept {
  return capi::guard([&]() -> Status {
    if (context == nullptr) return {};
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    if (context->impl->in_use()) {
      return Status(
          Code::kBusy,
          "the context is in use; destroy its communicators, memories and bootstraps first");
    }
    capi::destroy(context);
    return {};
  });
}

hetcomm_status_t hetcomm_context_progress(hetcomm_context_t* context) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    context->impl->engine().poke();
    return {};
  });
}

hetcomm_status_t hetcomm_device_count(hetcomm_context_t* context, int32_t* out_count) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_count);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    *out_count = static_cast<int32_t>(context->impl->devices().size());
    return {};
  });
}

hetcomm_status_t hetcomm_device_info(hetcomm_context_t* context, int32_t index,
                                     hetcomm_device_info_t* out_info) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_info);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(*context->impl, index));
    const Device& device = context->impl->devices().device(static_cast<size_t>(index));
    hetcomm_device_info_t info{};
    info.index = index;
    info.host_accessible = device.table->host_accessible != 0 ? 1 : 0;
    std::strncpy(info.kind, device.table->kind, sizeof(info.kind) - 1);
    std::strncpy(info.name, hetcomm::name_of(device), sizeof(info.name) - 1);
    const char* const address =
        device.table->pci_address ? device.table->pci_address(device.instance) : nullptr;
    if (address != nullptr) {
      std::strncpy(info.pci_address, address, sizeof(info.pci_address) - 1);
    }
    info.numa_node = device.table->numa_node ? device.table->numa_node(device.instance) : -1;
    return capi::write_output(info, out_info);
  });
}

hetcomm_status_t hetcomm_device_from_native(hetcomm_context_t* context, const char* kind,
                                            void* native, int32_t* out_device) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(kind);
    HETCOMM_REQUIRE(native);
    HETCOMM_REQUIRE(out_device);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    Result<size_t> device = context->impl->find_or_add_device(kind, native, [&] {
      return capi::make_native_device(kind, native, context->impl->config(), context->impl->log());
    });
    if (!device.ok()) return device.status();
    claim(*context, *device);
    *out_device = static_cast<int32_t>(*device);
    return {};
  });
}

hetcomm_status_t hetcomm_device_add(hetcomm_context_t* context, const hetcomm_device_t* device,
                                    int32_t* out_device) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(device);
    HETCOMM_REQUIRE(out_device);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    Result<hetcomm::DeviceTable> table = hetcomm::complete_table(device->table);
    if (!table.ok()) return table.status();
    if (capi::is_own_kind(table->kind)) {
      return Status(Code::kInvalidArgument, std::string("'") + table->kind +
                                                "' is the name of a kind of the library's own");
    }
    Result<Device> checked = hetcomm::make_checked_device(*device);
    if (!checked.ok()) return checked.status();
    Result<size_t> index = context->impl->add_device(*checked);
    if (!index.ok()) {
      hetcomm::drop_wall(*checked);
      return index.status();
    }
    claim(*context, *index);
    *out_device = static_cast<int32_t>(*index);
    return {};
  });
}

hetcomm_status_t hetcomm_device_abandon(hetcomm_context_t* context, int32_t device,
                                        const char* reason) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(*context->impl, device));
    const auto index = static_cast<size_t>(device);
    if (context->impl->devices().device(index).table->host_accessible != 0) {
      return Status(Code::kInvalidArgument, "memory that the CPU touches cannot be given up");
    }
    context->impl->abandon_device(index, reason != nullptr ? reason : "by a call");
    return {};
  });
}

hetcomm_status_t hetcomm_memory_allocate(hetcomm_context_t* context, int32_t device,
                                         uint64_t size_bytes,
                                         hetcomm_memory_t** out_memory) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_memory);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(*context->impl, device));
    if (size_bytes == 0) return Status(Code::kInvalidArgument, "size_bytes has to be above 0");
    const auto index = static_cast<size_t>(device);
    HETCOMM_RETURN_IF_ERROR(context->impl->devices().check(index));
    const Device& target = context->impl->devices().device(index);
    void* address = nullptr;
    const hetcomm_status_t status = target.table->allocate(target.instance, size_bytes, &address);
    if (status != HETCOMM_OK) {
      return Status(static_cast<Code>(status),
                    std::string(target.table->kind) + ": cannot allocate " +
                        std::to_string(size_bytes) +
                        " bytes: " + hetcomm::failure_text(target, status));
    }
    try {
      *out_memory = new hetcomm_memory(*context->impl, index, address, size_bytes, true);
    } catch (const std::bad_alloc&) {
      target.table->free(target.instance, address);
      throw;
    }
    return {};
  });
}

hetcomm_status_t hetcomm_memory_wrap(hetcomm_context_t* context, int32_t device, void* address,
                                     uint64_t size_bytes, hetcomm_memory_t** out_memory) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(address);
    HETCOMM_REQUIRE(out_memory);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(*context->impl, device));
    if (size_bytes == 0) return Status(Code::kInvalidArgument, "size_bytes has to be above 0");
    const auto index = static_cast<size_t>(device);
    const hetcomm::DeviceSet& devices = context->impl->devices();
    HETCOMM_RETURN_IF_ERROR(devices.check(index));
    Retained retained(devices.device(index), address);
    HETCOMM_RETURN_IF_ERROR(retained.take(size_bytes));
    const void* allocation = nullptr;
    HETCOMM_RETURN_IF_ERROR(check_wrapped(devices, index, address, size_bytes, &allocation));
    *out_memory = new hetcomm_memory(*context->impl, index, address, size_bytes, false);
    (*out_memory)->set_allocation(allocation);
    retained.hand_over();
    return {};
  });
}

hetcomm_status_t hetcomm_memory_destroy(hetcomm_memory_t* memory) noexcept {
  return capi::guard([&]() -> Status {
    if (memory == nullptr) return {};
    HETCOMM_REQUIRE_HANDLE(memory);
    hetcomm::Context& context = memory->context;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(context));
    if (memory->registration != nullptr)
      return Status(Code::kBusy, "the memory is registered; unregister it first");
    if (memory->in_use())
      return Status(Code::kBusy,
                    "a pending operation or a prepared request uses the memory; wait for it or "
                    "free it first");
    if (memory->known_placeholder() != nullptr) {
      const hetcomm::Engine::Baton baton(context.engine());
      context.devices().forget(*memory);
    }
    capi::destroy(memory);
    context.drop_object();
    return {};
  });
}

hetcomm_status_t hetcomm_memory_size(const hetcomm_memory_t* memory, uint64_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    const auto out_size_bytes = out_size;
    HETCOMM_REQUIRE(out_size_bytes);
    *out_size_bytes = memory->size();
    return {};
  });
}

hetcomm_status_t hetcomm_memory_address(const hetcomm_memory_t* memory,
                                        void** out_address) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_REQUIRE(out_address);
    *out_address = memory->address();
    return {};
  });
}

hetcomm_status_t hetcomm_memory_write(hetcomm_memory_t* memory, uint64_t offset, const void* source,
                                      uint64_t size_bytes) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    if (size_bytes > 0) {
      HETCOMM_REQUIRE(source);
      HETCOMM_RETURN_IF_ERROR(check_plain(memory->context.devices(), source));
    }
    return memory->write(offset, source, size_bytes);
  });
}

hetcomm_status_t hetcomm_memory_read(hetcomm_memory_t* memory, uint64_t offset, void* destination,
                                     uint64_t size_bytes) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    if (size_bytes > 0) {
      HETCOMM_REQUIRE(destination);
      HETCOMM_RETURN_IF_ERROR(check_plain(memory->context.devices(), destination));
    }
    return memory->read(offset, destination, size_bytes);
  });
}

}  // extern "C"
