"""Protobuf classes for tests, as protoc would generate them of two files, the second of which imports the first."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPE = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: int, type_name: str = "", *, repeated: bool = False) -> Any:
    label = _TYPE.LABEL_REPEATED if repeated else _TYPE.LABEL_OPTIONAL
    return _TYPE(name=name, number=number, type=kind, type_name=type_name or None, label=label)


_MONEY = descriptor_pb2.FileDescriptorProto(
    name="shop/money.proto",
    package="shop",
    syntax="proto3",
    message_type=[
        descriptor_pb2.DescriptorProto(
            name="Money", field=[_field("currency", 1, _TYPE.TYPE_STRING), _field("cents", 2, _TYPE.TYPE_INT64)]
        )
    ],
)
_ORDERS = descriptor_pb2.FileDescriptorProto(
    name="shop/orders.proto",
    package="shop",
    syntax="proto3",
    dependency=["shop/money.proto"],
    message_type=[
        descriptor_pb2.DescriptorProto(
            name="Order",
            field=[
                _field("number", 1, _TYPE.TYPE_INT32),
                _field("customer", 2, _TYPE.TYPE_STRING),
                _field("total", 3, _TYPE.TYPE_MESSAGE, ".shop.Money"),
                _field("lines", 4, _TYPE.TYPE_MESSAGE, ".shop.Order.Line", repeated=True),
                _field("photo", 5, _TYPE.TYPE_BYTES),
            ],
            nested_type=[
                descriptor_pb2.DescriptorProto(name="Note"),
                descriptor_pb2.DescriptorProto(
                    name="Line", field=[_field("article", 1, _TYPE.TYPE_STRING), _field("count", 2, _TYPE.TYPE_UINT32)]
                ),
            ],
        ),
        descriptor_pb2.DescriptorProto(name="Refund", field=[_field("order", 1, _TYPE.TYPE_INT32)]),
    ],
)
FILES = descriptor_pb2.FileDescriptorSet(file=[_MONEY, _ORDERS])
"""As `protoc --descriptor_set_out --include_imports` writes it."""

_pool = descriptor_pool.DescriptorPool()
for _file in FILES.file:
    _pool.Add(_file)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


Order, Line, Refund, Money = map(_class, ("shop.Order", "shop.Order.Line", "shop.Refund", "shop.Money"))
