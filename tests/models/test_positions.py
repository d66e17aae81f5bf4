"""Where images stand in position space."""

from __future__ import annotations

import torch

from outboard.engine.models.positions import (
    Place,
    Rope,
    image_ids,
    place_by_diagonal,
    place_by_index,
    place_by_offset,
)

CPU = torch.device("cpu")


def test_ids_count_rows_and_columns() -> None:
    ids = image_ids(2, 3, Place(), Rope(), CPU)
    assert ids.tolist() == [[0, row, column] for row in range(2) for column in range(3)]


def test_ids_follow_place_and_rope() -> None:
    rope = Rope.parse({"scale_y": 2.0, "scale_x": 0.5, "shift_t": 0.25, "scale_t": 9.0, "shift_x": -1.0}, "X")
    ids = image_ids(2, 2, Place(1.0, 10, 20), rope, CPU)
    assert ids.tolist() == [[1.25, 10, 19], [1.25, 10, 19.5], [1.25, 12, 19], [1.25, 12, 19.5]]


def test_offset_puts_each_reference_where_the_whole_stays_squarest() -> None:
    places = list(place_by_offset([(16, 8), (8, 8), (8, 8)], 2))
    assert places == [Place(1.0, 0, 0), Place(1.0, 0, 4), Place(1.0, 8, 0)]


def test_offset_puts_a_second_equal_square_below() -> None:
    assert list(place_by_offset([(8, 8), (8, 8)], 2)) == [Place(1.0, 0, 0), Place(1.0, 4, 0)]


def test_odd_offsets_are_rounded_up_to_tokens() -> None:
    assert list(place_by_offset([(7, 7), (7, 7)], 2))[1] == Place(1.0, 4, 0)


def test_index_gives_each_reference_a_frame() -> None:
    assert list(place_by_index(2)) == [Place(1.0), Place(2.0)]


def test_diagonal_starts_after_the_target() -> None:
    assert list(place_by_diagonal((3, 5), [(8, 4), (2, 2)], 2)) == [Place(0.0, 3, 5), Place(0.0, 7, 7)]
