"""Grading: an exercise is a contract, and a function of the reader's keeps it or not."""

from minidist.grading.exercises import EXERCISES
from minidist.grading.grade import check, grade_file
from minidist.grading.report import Report

__all__ = ["EXERCISES", "Report", "check", "grade_file"]
