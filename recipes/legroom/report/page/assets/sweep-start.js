"use strict";
if (typeof echarts === "undefined" || !legroom.sweep) {
  document.getElementById("page").textContent = "A file that this page needs is not there: it lies in the folder “page” beside this file. " +
    "$REPORT_COMMAND with this folder makes it again.";
} else {
  sweepPage(legroom.sweep, document.getElementById("page"));
}
