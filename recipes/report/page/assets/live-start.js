"use strict";
livePage(headroom.live, document.getElementById("page"));
