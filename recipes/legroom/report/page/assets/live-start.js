"use strict";
livePage(legroom.live, document.getElementById("page"));
