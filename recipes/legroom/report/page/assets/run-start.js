"use strict";
if (typeof echarts === "undefined" || !legroom.run) {
  document.getElementById("page").textContent = "A file that this page needs is not there: the pages of a sweep share files in the sweep's folder. " +
    "$REPORT_COMMAND with this run's folder makes a page that stands alone.";
} else {
  runPage(legroom.run, document.getElementById("page"));
}
