#!/usr/bin/env python3
"""Writes the machines of this folder: files as `lstopo NAME.xml` writes them, with what hwloc does not
know of their NICs in NAME.nics.json.

  tests/machines/make.py           writes all of them here
  tests/machines/make.py FOLDER    ... there
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA, MELLANOX, AMD, ASPEED, PLX = 0x10de, 0x15b3, 0x1002, 0x1a03, 0x10b5
PCIE4_X16, PCIE5_X16, PCIE3_X8 = 31.5077, 63.0154, 7.8769  # GB/s


@dataclass
class Function:
    """A PCI function; |children| of a bridge."""
    address: str
    device_class: int = 0x0604
    vendor: int = PLX
    device: int = 0x8747
    speed: float = 0.0
    interfaces: list = field(default_factory=list)  # (name, port)
    rdma: list = field(default_factory=list)        # (device, number of ports, state)
    children: list = field(default_factory=list)

    @property
    def is_bridge(self):
        return self.device_class == 0x0604


def accelerator(address, vendor=NVIDIA, speed=PCIE4_X16, device_class=0x0302):
    return Function(address, device_class, vendor, 0x2330, speed)


def nic(address, rdma=None, interface=None, ports=1, state=4, speed=PCIE4_X16):
    function = Function(address, 0x0207 if rdma else 0x0200, MELLANOX, 0x1021, speed)
    if rdma:
        function.rdma = [(rdma, ports, state)]
    if interface:
        function.interfaces = [(interface, 1)] if isinstance(interface, str) else interface
    return function


def root_port(address, *children, speed=PCIE4_X16):
    return Function(address, speed=speed, children=list(children))


def switch(domain_bus, *children):
    """An upstream port on bus |domain_bus|, and below it one downstream port for each child."""
    domain, bus = domain_bus.split(":")
    down = f"{int(bus, 16) + 1:02x}"
    ports = [Function(f"{domain}:{down}:{i:02x}.0", speed=PCIE4_X16, children=[child])
             for i, child in enumerate(children)]
    return Function(f"{domain}:{bus}:00.0", speed=PCIE4_X16, children=ports)


@dataclass
class Node:
    """A NUMA node with its host bridges: (first bus, functions)."""
    bridges: list = field(default_factory=list)


@dataclass
class Package:
    nodes: list
    bridges: list = field(default_factory=list)  # those that no single node is nearest to


class Writer:
    """The XML of one machine: two processors for each NUMA node."""

    def __init__(self, packages):
        self.packages = packages
        self.lines = []
        self.gp = 0
        self.node_count = sum(len(package.nodes) for package in packages)

    def identity(self):
        self.gp += 1
        return f'gp_index="{self.gp}"'

    def sets(self, first, count):
        cpus = sum(3 << 2 * node for node in range(first, first + count))
        nodes = sum(1 << node for node in range(first, first + count))
        return " ".join(f'{prefix}{kind}="{value:#010x}"' for kind, value in (("cpuset", cpus), ("nodeset", nodes))
                        for prefix in ("", "complete_"))

    def open(self, indent, text):
        self.lines.append(" " * indent + f"<object {text}>")

    def close(self, indent):
        self.lines.append(" " * indent + "</object>")

    def leaf(self, indent, text):
        self.lines.append(" " * indent + f"<object {text}/>")

    def function(self, indent, function, depth):
        domain, bus, rest = function.address.split(":")
        kind = f'{function.device_class:04x} [{function.vendor:04x}:{function.device:04x}] [0000:0000] 00'
        pci = (f'pci_busid="{function.address}" pci_type="{kind}" '
               f'pci_link_speed="{function.speed:.6f}"')
        index = (int(domain, 16) << 20) + (int(bus, 16) << 12) + (int(rest[:2], 16) << 4) + int(rest[3], 16)
        head = f'os_index="{index}" {self.identity()}'
        if function.is_bridge:
            secondary = function.children[0].address.split(":")[1] if function.children else bus
            self.open(indent, f'type="Bridge" {head} bridge_type="1-1" depth="{depth}" '
                              f'bridge_pci="{domain}:[{secondary}-{secondary}]" {pci}')
        else:
            self.open(indent, f'type="PCIDev" {head} {pci}')
        for name, port in function.interfaces:
            self.open(indent + 2, f'type="OSDev" {self.identity()} name="{name}" osdev_type="2"')
            self.lines.append(" " * (indent + 4) + f'<info name="Port" value="{port}"/>')
            self.close(indent + 2)
        for name, ports, state in function.rdma:
            self.open(indent + 2, f'type="OSDev" {self.identity()} name="{name}" osdev_type="3"')
            for port in range(1, ports + 1):
                self.lines.append(" " * (indent + 4) + f'<info name="Port{port}State" value="{state}"/>')
            self.close(indent + 2)
        for child in function.children:
            self.function(indent + 2, child, depth + 1)
        self.close(indent)

    def host_bridges(self, indent, bridges):
        for first, functions in bridges:
            domain, bus = first.split(":")
            self.open(indent, f'type="Bridge" {self.identity()} bridge_type="0-1" depth="0" '
                              f'bridge_pci="{domain}:[{bus}-{int(bus, 16) + 15:02x}]"')
            for function in functions:
                self.function(indent + 2, function, 1)
            self.close(indent)

    def numa(self, indent, number):
        self.leaf(indent, f'type="NUMANode" os_index="{number}" {self.sets(number, 1)} {self.identity()} '
                          f'local_memory="68719476736"')

    def processors(self, indent, node):
        for cpu in (2 * node, 2 * node + 1):
            self.leaf(indent, f'type="PU" os_index="{cpu}" cpuset="{1 << cpu:#010x}" '
                              f'complete_cpuset="{1 << cpu:#010x}" nodeset="{1 << node:#010x}" '
                              f'complete_nodeset="{1 << node:#010x}" {self.identity()}')

    def xml(self):
        self.lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
                      '<topology version="2.0">']
        sets = self.sets(0, self.node_count)
        allowed = " ".join(part.replace("complete_", "allowed_") for part in sets.split() if "complete_" in part)
        self.open(2, f'type="Machine" os_index="0" {sets} {allowed} {self.identity()}')
        node = 0
        for number, package in enumerate(self.packages):
            count = len(package.nodes)
            self.open(4, f'type="Package" os_index="{number}" {self.sets(node, count)} {self.identity()}')
            if count == 1:
                self.numa(6, node)
                self.processors(6, node)
                self.host_bridges(6, package.nodes[0].bridges)
                node += 1
            else:
                for each in package.nodes:
                    self.open(6, f'type="Group" {self.sets(node, 1)} {self.identity()} kind="1001" subkind="0"')
                    self.numa(8, node)
                    self.processors(8, node)
                    self.host_bridges(8, each.bridges)
                    self.close(6)
                    node += 1
            self.host_bridges(6, package.bridges)
            self.close(4)
        self.close(2)
        self.distances()
        self.lines.append("</topology>")
        return "\n".join(self.lines) + "\n"

    def distances(self):
        owner = [number for number, package in enumerate(self.packages) for _ in package.nodes]
        count = self.node_count
        if count < 2:
            return
        values = [10 if a == b else 12 if owner[a] == owner[b] else 21 for a in range(count) for b in range(count)]
        indexes = " ".join(map(str, range(count))) + " "
        text = " ".join(map(str, values)) + " "
        self.lines += [f'  <distances2 type="NUMANode" nbobjs="{count}" kind="5" name="NUMALatency" indexing="os">',
                       f'    <indexes length="{len(indexes)}">{indexes}</indexes>',
                       f'    <u64values length="{len(text)}">{text}</u64values>', '  </distances2>']


def facts(*nics):
    return {"format": "hetcomm topology", "version": 1, "nics": list(nics)}


def rdma_facts(names, mbit=200000, **more):
    return [{"rdma_device": name, "state": "up", "mbit_per_s": mbit,
             "subnets": [f"10.{i}.0.0/16"], **more} for i, name in enumerate(names)]


def switched_bridge(bus, children, root=None):
    """A host bridge with one root port, below it a switch with |children|."""
    first = root or bus
    upstream = f"{int(bus.split(':')[1], 16) + 1:02x}"
    return (first, [root_port(f"{bus}:01.0", switch(f"0000:{upstream}", *children))])


def eight_nics():
    """As a DGX: two sockets, four switches, two accelerators and two NICs below each."""
    bridges = []
    for i, bus in enumerate((0x10, 0x40, 0x90, 0xc0)):
        leaf = [f"0000:{bus + 3 + j:02x}:00.0" for j in range(4)]
        bridges.append(switched_bridge(f"0000:{bus:02x}", [
            accelerator(leaf[0]), accelerator(leaf[1]),
            nic(leaf[2], f"mlx5_{2 * i}", f"ib{2 * i}"), nic(leaf[3], f"mlx5_{2 * i + 1}", f"ib{2 * i + 1}")]))
    return ([Package([Node(bridges[:2])]), Package([Node(bridges[2:])])],
            facts(*rdma_facts([f"mlx5_{i}" for i in range(8)])))


def four_nics():
    """Two accelerators share each of four NICs; a fifth, slow one is for storage."""
    bridges = []
    for i, bus in enumerate((0x10, 0x40, 0x90, 0xc0)):
        leaf = [f"0000:{bus + 3 + j:02x}:00.0" for j in range(3)]
        bridges.append(switched_bridge(f"0000:{bus:02x}", [
            accelerator(leaf[0]), accelerator(leaf[1]), nic(leaf[2], f"mlx5_{i}")]))
    storage = ("0000:e0", [root_port("0000:e0:01.0", nic("0000:e1:00.0", interface="eno1", speed=PCIE3_X8))])
    return ([Package([Node(bridges[:2])]), Package([Node(bridges[2:] + [storage])])],
            facts(*rdma_facts([f"mlx5_{i}" for i in range(4)]),
                  {"interface": "eno1", "state": "up", "mbit_per_s": 10000, "subnets": ["192.168.0.0/24"]}))


def one_nic():
    """Eight accelerators below four switches of two sockets, and a single NIC."""
    bridges = []
    for bus in (0x10, 0x40, 0x90, 0xc0):
        bridges.append(switched_bridge(f"0000:{bus:02x}", [
            accelerator(f"0000:{bus + 3:02x}:00.0", AMD, device_class=0x0380),
            accelerator(f"0000:{bus + 4:02x}:00.0", AMD, device_class=0x0380)]))
    lone = ("0000:60", [root_port("0000:60:02.0", nic("0000:61:00.0", "bnxt_re0", "ens1"))])
    return ([Package([Node(bridges[:2] + [lone])]), Package([Node(bridges[2:])])],
            facts(*rdma_facts(["bnxt_re0"], 100000)))


def switch_without_nic():
    """The second switch of a socket has no NIC: its accelerators use those of the first."""
    with_nics = switched_bridge("0000:10", [accelerator("0000:13:00.0"), accelerator("0000:14:00.0"),
                                            nic("0000:15:00.0", "mlx5_0"), nic("0000:16:00.0", "mlx5_1")])
    without = switched_bridge("0000:40", [accelerator("0000:43:00.0"), accelerator("0000:44:00.0")])
    other = switched_bridge("0000:90", [accelerator("0000:93:00.0"), nic("0000:94:00.0", "mlx5_2")])
    return ([Package([Node([with_nics, without])]), Package([Node([other])])],
            facts(*rdma_facts(["mlx5_0", "mlx5_1", "mlx5_2"])))


def nic_down():
    """The near NIC of the second accelerator has no link; two ports of one card are elsewhere."""
    bridges = [
        switched_bridge("0000:10", [accelerator("0000:13:00.0"), nic("0000:14:00.0", "mlx5_0")]),
        switched_bridge("0000:40", [accelerator("0000:43:00.0"), nic("0000:44:00.0", "mlx5_1", state=1)]),
    ]
    card = ("0000:90", [root_port("0000:90:01.0", nic("0000:91:00.0", "mlx5_2"), nic("0000:91:00.1", "mlx5_3"))])
    return ([Package([Node(bridges)]), Package([Node([card])])],
            facts(*rdma_facts(["mlx5_0"]), {"rdma_device": "mlx5_1", "state": "down", "mbit_per_s": 200000},
                  *rdma_facts(["mlx5_2", "mlx5_3"], 100000)))


def two_ports():
    """One function with two ports of different rates, and a console that is no accelerator."""
    card = nic("0000:14:00.0", "mlx4_0", [("eth0", 1), ("eth1", 2)], ports=2)
    bridges = [switched_bridge("0000:10", [accelerator("0000:13:00.0"), card, accelerator("0000:15:00.0")]),
               ("0000:00", [root_port("0000:00:1c.0", Function("0000:01:00.0", 0x0300, ASPEED, 0x2000))])]
    return ([Package([Node(bridges)])],
            facts({"interface": "eth0", "state": "up", "mbit_per_s": 40000, "subnets": ["10.0.0.0/16"]},
                  {"interface": "eth1", "state": "up", "mbit_per_s": 10000, "subnets": ["10.1.0.0/16"]},
                  {"interface": "bond0", "state": "up", "mbit_per_s": 50000, "over": ["eth0", "eth1"]}))


def unequal_rates():
    """NICs of 400, 200 and 100 Gbit/s and six accelerators at one root complex."""
    ports = [root_port(f"0000:10:{i + 1:02x}.0", accelerator(f"0000:{0x11 + i:02x}:00.0")) for i in range(6)]
    ports += [root_port(f"0000:10:{i + 7:02x}.0", nic(f"0000:{0x17 + i:02x}:00.0", f"mlx5_{i}", speed=PCIE5_X16))
              for i in range(3)]
    rates = (400000, 200000, 100000)
    return ([Package([Node([("0000:10", ports)])])],
            facts(*({"rdma_device": f"mlx5_{i}", "state": "up", "mbit_per_s": rate}
                    for i, rate in enumerate(rates))))


def four_nodes():
    """Four NUMA nodes in each of two sockets; accelerators and NICs at different nodes, and a NIC that is
    near a whole socket."""
    def node(bus, *functions):
        return Node([(f"0000:{bus:02x}", [root_port(f"0000:{bus:02x}:{i + 1:02x}.0", function)
                                          for i, function in enumerate(functions)])])
    first = Package([node(0x10, accelerator("0000:11:00.0"), nic("0000:12:00.0", "mlx5_0")),
                     node(0x20, accelerator("0000:21:00.0")),
                     node(0x30, accelerator("0000:31:00.0"), nic("0000:32:00.0", "mlx5_1")),
                     Node()],
                    [("0000:80", [root_port("0000:80:01.0", nic("0000:81:00.0", "mlx5_3"))])])
    second = Package([Node(), node(0xa0, accelerator("0000:a1:00.0")),
                      node(0xb0, nic("0000:b1:00.0", "mlx5_2")), Node()])
    return ([first, second], facts(*rdma_facts(["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"])))


MACHINES = [eight_nics, four_nics, one_nic, switch_without_nic, nic_down, two_ports, unequal_rates, four_nodes]


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    for machine in MACHINES:
        packages, nics = machine()
        (folder / f"{machine.__name__}.xml").write_text(Writer(packages).xml())
        (folder / f"{machine.__name__}.nics.json").write_text(json.dumps(nics, indent=1) + "\n")


if __name__ == "__main__":
    main()
