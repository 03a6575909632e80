"""The documents for developers are those that the code gives, and have every part of it."""

import xml.etree.ElementTree as ElementTree

import benchmark.methods.protocol as protocol
from tests.developer_docs import API, CLASSES, PICTURE, PURPOSES, documents, layers


def test_the_committed_documents_are_current() -> None:
    """If this fails, type `python -m tests.developer_docs`."""
    for path, text in documents().items():
        assert path.read_text() == text, path


def test_the_picture_has_every_layer_and_says_what_it_is_for() -> None:
    parts = [part for layer in layers() for part in layer]
    texts = {node.text for node in ElementTree.fromstring(PICTURE.read_text()).iter() if node.text}
    assert texts.issuperset(parts)
    assert set(parts).issuperset(PURPOSES)


def test_the_page_has_every_public_function_of_its_classes() -> None:
    page = API.read_text()
    for name in CLASSES:
        for member in vars(getattr(protocol, name)):
            assert member.startswith("_") or f"`{member}" in page, (name, member)
